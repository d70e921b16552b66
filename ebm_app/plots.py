"""Figures of a run and of its checks."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ebm_app.metrics import read_metrics
from ebm_app.selftest import Balance


def plot_training(metrics: Path, target: Path) -> None:
    """The figure of :func:`training_figure` as a PNG."""
    training_figure(read_metrics(metrics)).savefig(target, dpi=120)


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


def plot_balance(found: Balance, target: Path) -> None:
    """The figure of :func:`balance_figure` as a PNG."""
    balance_figure(found).savefig(target, dpi=110)


def balance_figure(found: Balance) -> Figure:
    """The mean time score over the clock."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(found.shares, found.mean, yerr=found.stderr, marker="o", capsize=3)
    axes.axhline(0, color="grey", lw=1)
    axes.set(xlabel="share of the clock", ylabel="E[s] per dim and unit of the clock (nats)")
    return figure
