"""The figure of a training run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: metrics of validation and what the figure calls them
BITS = {
    "validation": "validation",
    "validation_elbo": "variational bound",
    "validation_ratio": "integral of the time score",
}


def training_figure(lines: list[dict[str, float]]) -> "Figure":
    """Training and validation loss, and validation bits per dim, against the step; what a run has
    not come to yet is left out.

    Args:
        lines: of a run's metrics.
    """
    # a second to import, only for this
    import pandas as pd
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    frame = pd.DataFrame(lines)
    for key, label in (("loss", "training"), ("validation_loss", "validation")):
        if key in frame:
            left.plot(*frame[["step", key]].dropna().T.to_numpy(), label=label)
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    for key, label in BITS.items():
        columns = ["step", f"{key}_bits_per_dim", f"{key}_stderr"]
        if columns[1] in frame:
            points = frame[columns].dropna().T.to_numpy()
            right.errorbar(*points, capsize=3, marker="o", label=label)
            right.legend()
    right.set(xlabel="step", ylabel="validation bits per dim")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure
