"""Plots of trials and of estimates while they are learned, narrow enough for a phone."""

import math
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor

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
    """Under a title the curves, and estimated against true log ratio."""
    heights = [1.9, 2.6]
    height = HEAD + sum(heights)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    figure.subplots_adjust(left=0.13, right=0.95, bottom=0.3 / height, top=1 - HEAD / height)
    figure.text(0.13, 1 - 0.03 / height, title, va="top", fontsize="small")
    rows = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0.3)
    _curves(rows[0], shot)
    _scatter(figure.add_subplot(rows[1]), shot)
    return figure


class Planes(NamedTuple):
    """What a trial on the plane has learned, in a square window (left, right, bottom, top), at
    ``TIMES``: p_t as drawn and as learned, and its time score, (T, side, side)."""

    limits: tuple[float, float, float, float]
    drawn: Tensor
    learned: Tensor
    time_scores: Tensor


def planes_of(shot: Snapshot) -> Planes | None:
    """The planes of a trial, if its problem has them."""
    grid = shot.evaluator.grid
    if grid is None:
        return None
    parts = grid.drawn, shot.log_densities.exp(), shot.time_scores
    return Planes(grid.limits, *(part.float() for part in parts))


def plot_planes(planes: Planes, time: float) -> Figure:
    """The three planes at one of ``TIMES`` side by side; blue is where p_t falls with t, red
    where it grows."""
    at = TIMES.index(time)
    limits, drawn, learned, scores = planes.limits, *(part[at].numpy() for part in planes[1:])
    figure = Figure(figsize=(WIDTH, 1.8), dpi=DPI, layout="constrained")
    density = {"cmap": "magma", "vmin": 0, "vmax": drawn.max()}
    half = np.quantile(abs(scores), 0.95)
    for axes, title, values, colours in zip(
        figure.subplots(1, 3),
        (f"draws of $p_{{{time:g}}}$", f"learned $p_{{{time:g}}}$", "time score"),
        (drawn, learned, scores),
        (density, density, {"cmap": "RdBu_r", "vmin": -half, "vmax": half}),
        strict=True,
    ):
        axes.imshow(values, origin="lower", extent=limits, **colours)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize="small")
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
