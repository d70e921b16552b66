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
    # a second to import, and not in every installation
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    found = list(dict.fromkeys(name for line in lines for name in line))
    bits = [name for name in found if name.endswith("bits_per_dim")]
    panels = {"loss": ["loss", "validation_loss"], "validation bits per dim": bits}
    for axes, (label, names) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name in (name for name in found if name in names):
            points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
            axes.plot(*zip(*points, strict=True), ".-", label=name.replace("_", " "))
        axes.set(xlabel="step", ylabel=label)
        if axes.lines:
            axes.legend()
    return figure
