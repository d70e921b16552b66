"""Pictures of a trial, narrow enough for a phone: what is to be learned, and where it stands."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ebm_app.data.pairs import Pair
from ebm_app.numerics import seeded
from ebm_app.ratios.training import VALIDATION
from ebm_app.studies.marginals import TIMES
from ebm_app.studies.trials import Snapshot

WIDTH, DPI = 5.0, 130
LOSS, ERROR = "C0", "C1"


def plot_pair(pair: Pair, num: int = 400) -> Figure:
    """Draws of either density, in the first two coordinates."""
    figure = Figure(figsize=(WIDTH, 3.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    generator = seeded("cpu", 0, VALIDATION)
    for draws, label, marker, color in (
        (pair.sample0(num, generator), "draws of $p_0$, the reference", "o", "0.6"),
        (pair.sample1(num, generator), "draws of $p_1$, the data", "x", LOSS),
    ):
        axes.plot(*draws[:, :2].T.numpy(), ls="", marker=marker, ms=3, color=color, label=label)
    axes.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
    figure.legend(loc="outside upper center", ncols=2, fontsize="small")
    return figure


def plot_trial(shot: Snapshot) -> Figure:
    """The curves, estimated against true log ratio where there is a truth, and on the plane p_t as
    drawn and as learned."""
    heights = [2.4, *([2.9] if shot.has_truth else []), *([2.7] if shot.judge.plane else [])]
    figure = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI, layout="constrained")
    figure.suptitle(f"{shot.trial.method} on {shot.trial.problem}", fontsize="medium")
    rows = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    _curves(rows.pop(0), shot)
    if shot.has_truth:
        _scatter(rows.pop(0).subplots(), shot)
    if shot.judge.plane:
        _densities(rows.pop(0), shot)
    return figure


def _curves(figure: SubFigure, shot: Snapshot) -> None:
    panels = [("loss", "loss on held-out draws", LOSS, "linear")]
    if shot.has_truth:
        panels.append(("error", "squared error, nats²", ERROR, "log"))
    columns = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, title, color, scale) in zip(columns, panels, strict=True):
        points = [(at["step"], at[name]) for at in shot.curve if at[name] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker=".", ms=4)
        axes.set_title(title, fontsize="small")
        axes.set(xlabel="step", yscale=scale, xlim=(0, shot.trial.training.iterations))


def _scatter(axes: Axes, shot: Snapshot) -> None:
    truth, estimate = shot.judge.points.truth.cpu(), shot.estimate
    low, high = truth.min().item(), truth.max().item()
    margin = 0.1 * (high - low)
    limits = (low - margin, high + margin)
    # what lies beyond the frame is drawn on its edge
    axes.plot(truth, estimate.clamp(*limits), ls="", marker=".", ms=3, alpha=0.5, color=LOSS)
    axes.plot(limits, limits, color="black", ls="--", lw=1, label="exact")
    axes.set(xlim=limits, ylim=limits, xlabel="true log ratio, nats", ylabel="estimate, nats")
    axes.legend(fontsize="small", loc="upper left")


def _densities(figure: SubFigure, shot: Snapshot) -> None:
    plane = shot.judge.plane
    panels = figure.subplots(2, len(TIMES), sharex=True, sharey=True)
    learned = shot.log_densities.exp()
    for column, time in enumerate(TIMES):
        top = plane.drawn[column].max().item()
        panels[0, column].set_title(f"t = {time:g}", fontsize="small")
        for axes, values in zip(panels[:, column], (plane.drawn, learned), strict=True):
            axes.set(xticks=[], yticks=[])
            if torch.isnan(values[column]).all():
                axes.text(0.5, 0.5, "not\nlearned", transform=axes.transAxes, ha="center")
                continue
            axes.imshow(
                values[column], origin="lower", extent=plane.limits, vmin=0, vmax=top, cmap="magma"
            )
    panels[0, 0].set_ylabel("draws", fontsize="small")
    panels[1, 0].set_ylabel("learned", fontsize="small")
