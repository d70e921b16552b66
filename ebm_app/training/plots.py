"""The figure of a training run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training_figure(lines: list[dict[str, float]]) -> "Figure":
    """Training and validation loss, and validation bits per dim, against the step; what a run has
    not come to yet is left out.

    Args:
        lines: of a run's metrics.
    """
    # a second to import, only for this
    import pandas as pd
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    frame = pd.DataFrame(lines).set_index("step")
    bits = [name for name in frame if name.endswith("bits_per_dim")]
    panels = {"loss": ["loss", "validation_loss"], "validation bits per dim": bits}
    for axes, (label, names) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name in frame.columns.intersection(names):
            axes.plot(frame[name].dropna(), ".-", label=name.replace("_", " "))
        axes.set(xlabel="step", ylabel=label)
        if axes.lines:
            axes.legend()
    return figure
