"""Plots of a trial, narrow enough for a phone: its two densities, and its metrics so far."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import MaxNLocator, NullFormatter

from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.marginals import TIMES
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.training import VALIDATION
from ebm_app.ratios.trials import Snapshot

WIDTH, DPI, HEAD = 4.2, 130, 0.6  # inches, dots an inch, inches
LOSS, ERROR = "C0", "C1"


def plot_pair(pair: DensityPair, num: int = 400) -> Figure:
    """Draws of either density, in the first two coordinates."""
    figure = Figure(figsize=(WIDTH, 3.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    generator = seeded("cpu", 0, VALIDATION)
    for draws, label, marker, color in (
        (pair.sample0(num, generator), "$p_0$, reference", "o", "0.6"),
        (pair.sample1(num, generator), "$p_1$, data", "x", LOSS),
    ):
        axes.plot(*draws[:, :2].T.numpy(), ls="", marker=marker, ms=3, color=color, label=label)
    axes.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def plot_trial(shot: Snapshot, title: str) -> Figure:
    """Under a title the curves, estimated against true log ratio where there is a truth, and on
    the plane p_t as drawn and as learned."""
    parts = {"curves": 1.9} | ({"scatter": 2.6} if shot.has_truth else {})
    parts |= {"densities": 1.75} if shot.evaluator.grid else {}
    height = HEAD + sum(parts.values())
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    figure.subplots_adjust(left=0.13, right=0.95, bottom=0.2 / height, top=1 - HEAD / height)
    figure.text(0.13, 1 - 0.03 / height, title, va="top", fontsize="small")
    grid = figure.add_gridspec(len(parts), 1, height_ratios=list(parts.values()), hspace=0.3)
    rows = dict(zip(parts, grid, strict=True))
    _curves(rows["curves"], shot)
    if "scatter" in rows:
        _scatter(figure.add_subplot(rows["scatter"]), shot)
    if "densities" in rows:
        _densities(rows["densities"], shot)
    return figure


def _curves(place: SubplotSpec, shot: Snapshot) -> None:
    panels = [("loss", "held-out loss", LOSS, "linear")]
    if shot.has_truth:
        panels.append(("error", "squared error, nats²", ERROR, "log"))
    columns = place.subgridspec(1, len(panels), wspace=0.4).subplots(squeeze=False)[0]
    for axes, (name, title, color, scale) in zip(columns, panels, strict=True):
        points = [(at["step"], at[name]) for at in shot.curve if at[name] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker=".", ms=4)
        axes.set_title(f"{title}, by step", fontsize="small")
        axes.set(yscale=scale, xlim=(0, shot.trial.training.iterations))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if scale == "log":
            _whole_decades(axes)
        axes.tick_params(labelsize="small", which="both")


def _whole_decades(axes: Axes) -> None:
    """Room for two labels at least, and none between them that would overlap."""
    low, high = (math.log10(end) for end in axes.get_ylim())
    axes.set_ylim(10 ** math.floor(low), 10 ** math.ceil(high))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _scatter(axes: Axes, shot: Snapshot) -> None:
    truth, estimate = shot.evaluator.points.truth.cpu().numpy(), shot.estimate
    low, high = truth.min(), truth.max()
    margin = 0.1 * (high - low)
    limits = (low - margin, high + margin)
    # what lies beyond the frame is drawn on its edge
    axes.plot(
        truth, estimate.clamp(*limits).numpy(), ls="", marker=".", ms=3, alpha=0.5, color=LOSS
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
            if np.isnan(values[column]).all():
                axes.text(0.5, 0.5, "not\nlearned", transform=axes.transAxes, ha="center")
                continue
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
