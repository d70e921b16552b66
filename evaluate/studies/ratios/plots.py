"""Plots of a study, as PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

METRICS = ["error", "error_deviation", "paper_error"]
LABELS = {"error": "validation error, nats²", "divergence": "mean log ratio over p₁, nats"}


def plot_table(rows: Sequence[dict[str, Any]], target: Path) -> None:
    """Mean squared error by problem, a line a method; hollow marks are the paper's."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    frame = pd.DataFrame(rows).astype(dict.fromkeys(METRICS, float))
    problems = list(frame["problem"].unique())
    for index, (method, own) in enumerate(frame.groupby("method", sort=False)):
        place = own["problem"].map(problems.index)
        means, deviations, paper = (own[name] for name in METRICS)
        style = {"marker": "o", "color": f"C{index % 10}", "ls": "-" if index < 10 else "--"}
        axes.errorbar(place, means, deviations.fillna(0), label=method, **style)
        axes.plot(place, paper, **{**style, "ls": "", "mfc": "none"})
    axes.set_xticks(range(len(problems)), problems, rotation=20, ha="right")
    axes.set(yscale="log", ylabel="mean squared error of the log ratio, nats²")
    axes.legend(fontsize="small", ncols=2, title="filled: ours, hollow: the paper's")
    figure.savefig(target, dpi=120)


def plot_curves(results: Sequence[dict[str, Any]], name: str, target: Path) -> None:
    """A metric on the validation points against the step, a panel a problem; the band spans the
    seeds, a dashed line is the true value where there is one.

    Args:
        name: a key of ``LABELS``; "error" is drawn on a logarithmic axis.
    """
    problems = list(dict.fromkeys(cell["problem"] for cell in results))
    figure = Figure(figsize=(4 * len(problems), 3.6), layout="constrained")
    methods = list(dict.fromkeys(cell["method"] for cell in results))
    panels = figure.subplots(1, len(problems), squeeze=False)[0]
    for axes, problem in zip(panels, problems, strict=True):
        column = [cell for cell in results if cell["problem"] == problem]
        for cell in column:
            index = methods.index(cell["method"])
            _band(axes, cell, name, f"C{index % 10}", "-" if index < 10 else "--")
        truth = column[0]["divergence_truth"] if name == "divergence" else None
        if truth is not None:
            axes.axhline(truth, color="black", ls="--", lw=1, label="truth")
            axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.25 * truth)
        axes.set(title=problem, xlabel="step", yscale="log" if name == "error" else "linear")
    figure.axes[0].set_ylabel(LABELS[name])
    figure.axes[0].legend(fontsize="x-small")
    figure.savefig(target, dpi=120)


def _band(axes: Axes, cell: dict[str, Any], name: str, color: str, style: str) -> None:
    """Mean and range over the seeds, where any is finite."""
    found = pd.DataFrame(at for curve in cell["curves"] for at in curve).dropna(subset=name)
    by_step = found.astype({name: float}).groupby("step")[name]
    axes.plot(by_step.mean(), color=color, ls=style, label=cell["method"])
    low, high = by_step.min(), by_step.max()
    axes.fill_between(low.index, low, high, color=color, alpha=0.2, lw=0)
