"""Plots of two-dimensional problems, learned log density ratios and mutual information."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor

from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.planes import TIMES, Planes
from ebm_app.ratios.problems import VALIDATION
from ebm_app.utils.random import make_generator

#: Width of a plot in inches, narrow enough for a phone, and dots per inch
WIDTH, DPI = 4.2, 130


def plot_pair(pair: DensityPair, num: int = 400) -> Figure:
    """Plot draws of both densities in the first two coordinates."""
    figure = Figure(figsize=(WIDTH, 3.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    generator = make_generator("cpu", 0, VALIDATION)
    for draws, label, marker, color in (
        (pair.p0.sample(num, generator), "$p_0$, reference", "o", "0.6"),
        (pair.p1.sample(num, generator), "$p_1$, data", "x", "C0"),
    ):
        axes.plot(*draws[:, :2].T.numpy(), ls="", marker=marker, ms=3, color=color, label=label)
    axes.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def plot_trial(
    curve: Sequence[tuple[int, float]], truth: Tensor, estimate: Tensor, title: str
) -> Figure:
    """Plot the squared error in nats^2 by step, and estimated against true log ratios."""
    figure = Figure(figsize=(WIDTH, 5.1), dpi=DPI, layout="constrained")
    figure.suptitle(title, x=0.02, ha="left", fontsize="small")
    error, ratio = figure.subplots(2, height_ratios=(2, 3))
    error.semilogy(*zip(*curve, strict=True), color="C1", marker=".", ms=4)
    error.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    # minor labels would overlap on two or more decades
    low, high = np.log10(error.get_ylim())
    error.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
    error.yaxis.set_minor_formatter(NullFormatter())
    truth, estimate = truth.cpu().numpy(), estimate.cpu().numpy()
    margin = 0.1 * np.ptp(truth)
    limits = truth.min() - margin, truth.max() + margin
    # points outside the frame are drawn on its edge
    ratio.plot(truth, estimate.clip(*limits), ls="", marker=".", ms=3, alpha=0.5, color="C0")
    ratio.plot(limits, limits, color="C7", ls="--", lw=1, label="exact")
    ratio.set(xlim=limits, ylim=limits)
    ratio.legend(fontsize="small", loc="upper left")
    error.set_title("squared error, nats², by step", fontsize="small")
    ratio.set_title("estimated against true log ratio, nats", fontsize="small")
    return figure


def plot_planes(planes: Planes) -> Figure:
    """Plot the draws, the learned density and the time score at ``TIMES``, a column each.

    The time score is blue where p_t decreases in t and red where it increases.
    """
    figure = Figure(figsize=(WIDTH, 2.9), dpi=DPI, layout="constrained")
    rows = figure.subplots(3, len(TIMES))
    half = np.quantile(abs(planes.time_scores), 0.95)
    signed = {"cmap": "RdBu_r", "vmin": -half, "vmax": half}
    labels = ("draws", "learned", "time score")
    for axes, values, label in zip(rows, planes[1:], labels, strict=True):
        axes[0].set_ylabel(label, fontsize="small")
        for column, time_, value, drawn in zip(axes, TIMES, values, planes.drawn, strict=True):
            density = {"cmap": "magma", "vmin": 0, "vmax": drawn.max()}
            colours = signed if label == "time score" else density
            column.imshow(value, origin="lower", extent=planes.limits, **colours)
            column.set(xticks=[], yticks=[])
            if label == "draws":
                column.set_title(f"t = {time_:g}", fontsize="small")
    return figure


def plot_learning(curve: Sequence[tuple[int, float]], truth: float) -> Figure:
    """Plot an estimate in nats by training step, with the truth."""
    figure = Figure(figsize=(WIDTH, 2.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), color="C0", label="estimate")
    axes.axhline(truth, color="C7", ls="--", lw=1, label=f"truth, {truth:g} nats")
    axes.set(xlabel="training step", ylabel="mutual information, nats")
    axes.legend(fontsize="small", loc="lower right")
    return figure
