"""Plots of trials and of estimates while they are learned, narrow enough for a phone."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import MaxNLocator, NullFormatter

from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.points import TIMES
from ebm_app.ratios.training import VALIDATION
from ebm_app.ratios.trials import Snapshot

WIDTH, DPI, HEAD = 4.2, 130, 0.6  # inches, dots an inch, inches


def plot_pair(pair: DensityPair, num: int = 400) -> Figure:
    """Draws of either density, in the first two coordinates."""
    figure = Figure(figsize=(WIDTH, 3.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    generator = seeded("cpu", 0, VALIDATION)
    for draws, label, marker, color in (
        (pair.p0.sample(num, generator), "$p_0$, reference", "o", "0.6"),
        (pair.p1.sample(num, generator), "$p_1$, data", "x", "C0"),
    ):
        axes.plot(*draws[:, :2].T.numpy(), ls="", marker=marker, ms=3, color=color, label=label)
    axes.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def plot_trial(shot: Snapshot, title: str) -> Figure:
    """Under a title the curves, estimated against true log ratio, and on the plane p_t as drawn
    and as learned."""
    heights = [1.9, 2.6, 1.75] if shot.evaluator.grid else [1.9, 2.6]
    height = HEAD + sum(heights)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    figure.subplots_adjust(left=0.13, right=0.95, bottom=0.2 / height, top=1 - HEAD / height)
    figure.text(0.13, 1 - 0.03 / height, title, va="top", fontsize="small")
    rows = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0.3)
    _curves(rows[0], shot)
    _scatter(figure.add_subplot(rows[1]), shot)
    if shot.evaluator.grid:
        _densities(rows[2], shot)
    return figure


def _curves(place: SubplotSpec, shot: Snapshot) -> None:
    loss, error = place.subgridspec(1, 2, wspace=0.4).subplots()
    for axes, name, color in ((loss, "loss", "C0"), (error, "error", "C1")):
        points = [(at["step"], at[name]) for at in shot.curve if at[name] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker=".", ms=4)
        axes.set_xlim(0, shot.trial.training.iterations)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.tick_params(labelsize="small", which="both")
    loss.set_title("held-out loss, by step", fontsize="small")
    error.set_title("squared error, nats², by step", fontsize="small")
    error.set_yscale("log")
    # room for two labels at least, and none between them that would overlap
    low, high = (math.log10(end) for end in error.get_ylim())
    error.set_ylim(10 ** math.floor(low), 10 ** math.ceil(high))
    error.yaxis.set_minor_formatter(NullFormatter())


def _scatter(axes: Axes, shot: Snapshot) -> None:
    truth, estimate = shot.evaluator.points.truth.cpu().numpy(), shot.estimate
    low, high = truth.min(), truth.max()
    margin = 0.1 * (high - low)
    limits = (low - margin, high + margin)
    # what lies beyond the frame is drawn on its edge
    axes.plot(
        truth, estimate.clamp(*limits).numpy(), ls="", marker=".", ms=3, alpha=0.5, color="C0"
    )
    axes.plot(limits, limits, color="black", ls="--", lw=1, label="exact")
    axes.set(xlim=limits, ylim=limits)
    axes.set_title("estimated against true log ratio, nats", fontsize="small")
    axes.tick_params(labelsize="small")
    axes.legend(fontsize="small", loc="upper left")


def _densities(place: SubplotSpec, shot: Snapshot) -> None:
    density_grid = shot.evaluator.grid
    panels = place.subgridspec(2, len(TIMES), wspace=0.05, hspace=0.05).subplots()
    drawn, learned = density_grid.drawn.numpy(), shot.log_densities.exp().numpy()
    for column, time in enumerate(TIMES):
        top = drawn[column].max()
        panels[0, column].set_title(f"t = {time:g}", fontsize="small")
        for axes, values in zip(panels[:, column], (drawn, learned), strict=True):
            axes.set(xticks=[], yticks=[], aspect="equal")
            axes.imshow(
                values[column],
                origin="lower",
                extent=density_grid.limits,
                vmin=0,
                vmax=top,
                cmap="magma",
            )
    panels[0, 0].set_ylabel("draws of $p_t$", fontsize="small")
    panels[1, 0].set_ylabel("learned $p_t$", fontsize="small")
