"""The figure of a training run."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def training_figure(lines: list[dict[str, float]]) -> Figure:
    """Training and validation loss, and validation bits per dim, against the step; what a run has
    not come to yet is left out.

    Args:
        lines: of a run's metrics.
    """
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for key, label in (("loss", "training"), ("validation_loss", "validation")):
        points = [(line["step"], line[key]) for line in lines if key in line]
        if points:
            left.plot(*zip(*points, strict=True), label=label)
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    for key, label in (("validation", "integral"), ("validation_elbo", "variational bound")):
        points = [
            (line["step"], line[f"{key}_bits_per_dim"], line[f"{key}_stderr"])
            for line in lines
            if f"{key}_bits_per_dim" in line
        ]
        if points:
            right.errorbar(*zip(*points, strict=True), capsize=3, marker="o", label=label)
            right.legend()
    right.set(xlabel="step", ylabel="validation bits per dim")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure
