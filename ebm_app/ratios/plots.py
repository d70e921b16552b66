r"""Plots of two-dimensional problems, learned log density ratios and mutual information.

``density_planes`` computes the densities p_t of a two-dimensional problem on a grid: a histogram
of draws, and the learned

    log p_t(x) = log p_0(x) + integral from 0 to t of the learned time score at x,   in nats.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor

from ebm_app.ratios.densities import DensityPair
from ebm_app.ratios.methods import TimeScoreRatio
from ebm_app.ratios.problems import VALIDATION
from ebm_app.utils.random import make_generator

#: Width of a plot in inches, narrow enough for a phone, and dots per inch
WIDTH, DPI = 4.2, 130
#: Times of the columns
TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Grid cells per axis, and draws of each density in the histogram
SIDE, NUM_DRAWS = 40, 40_000
#: Nodes of the integral between two of ``TIMES``
NODES_PER_INTERVAL = 4


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


class Planes(NamedTuple):
    """Values on a grid of the plane at ``TIMES``, each (T, side, side) with rows in increasing y.

    ``limits`` are the edges of the square (left, right, bottom, top), ``drawn`` the histogram of
    draws of p_t, ``learned`` the learned p_t, and ``time_scores`` its time score.
    """

    limits: tuple[float, ...]
    drawn: Tensor
    learned: Tensor
    time_scores: Tensor

    @property
    def mass(self) -> float:
        """Integral of the learned p_1 over the square."""
        return (self.limits[1] - self.limits[0]) ** 2 * self.learned[-1].mean().item()


@torch.no_grad()
def density_planes(pair: DensityPair, ratio: TimeScoreRatio, generator: torch.Generator) -> Planes:
    """Compare draws of p_t with the learned p_t, in a square that contains nearly all draws."""
    x0, x1 = (p.sample(NUM_DRAWS, generator) for p in (pair.p0, pair.p1))
    noise = torch.randn(x0.shape, device=x0.device, generator=generator)
    path, interval = ratio.model.path, ratio.model.interval
    drawn = [
        path.sample(x0, x1, torch.full((len(x0),), t, device=x0.device), noise).xt.double().cpu()
        for t in TIMES
    ]
    low, high = torch.cat(drawn).quantile(torch.tensor([0.001, 0.999]).double(), 0)
    half = 0.55 * (high - low).max().item()
    limits = [end for m in ((low + high) / 2).tolist() for end in (m - half, m + half)]
    edges = [torch.linspace(*ends, SIDE + 1).double() for ends in (limits[:2], limits[2:])]
    counts = torch.stack([torch.histogramdd(part, edges).hist.mT for part in drawn])
    x, y = torch.meshgrid(*((part[1:] + part[:-1]) / 2 for part in edges), indexing="xy")
    centres = torch.stack([x, y], 2).flatten(0, 1).to(x0)
    log_density, learned = pair.p0.log_density(centres), []
    times = torch.tensor(TIMES).double().clamp(*interval)
    for begin, end in pairwise([interval[0], *times.tolist()]):
        log_density = log_density + ratio.integral(centres, begin, end, NODES_PER_INTERVAL)
        learned.append(log_density.exp())
    scores = [ratio.time_score(centres, t) for t in times]
    parts = (torch.stack(part).unflatten(1, (SIDE, SIDE)).cpu() for part in (learned, scores))
    return Planes(tuple(limits), counts / len(x0) / (2 * half / SIDE) ** 2, *parts)


def plot_planes(planes: Planes) -> Figure:
    """Plot the draws, the learned density and the time score at ``TIMES``, a column each, below
    the integral of the learned p_1.

    The time score is blue where p_t decreases in t and red where it increases.
    """
    figure = Figure(figsize=(WIDTH, 3.1), dpi=DPI, layout="constrained")
    figure.suptitle(f"the learned $p_1$ integrates to {planes.mass:.2f}", fontsize="small")
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
