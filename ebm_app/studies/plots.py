"""Pictures of a study, as PNG."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure


def plot_table(rows: Sequence[dict[str, Any]], target: Path) -> None:
    """Mean squared error by problem, a line a method; hollow marks are the paper's."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    for index, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        own = [row for row in rows if row["method"] == method]
        place = [problems.index(row["problem"]) for row in own]
        color = f"C{index % 10}"
        style = "-" if index < 10 else "--"
        means = [row["error"] for row in own]
        errors = [row["error_deviation"] or 0.0 for row in own]
        axes.errorbar(place, means, errors, marker="o", ls=style, color=color, label=method)
        paper = [
            (at, row["paper_error"])
            for at, row in zip(place, own, strict=True)
            if row["paper_error"]
        ]
        if paper:
            axes.plot(*zip(*paper, strict=True), ls="", marker="o", mfc="none", color=color)
    axes.set_xticks(range(len(problems)), problems, rotation=20, ha="right")
    axes.set(yscale="log", ylabel="mean squared error of the log ratio, nats²")
    axes.legend(fontsize="small", ncols=2, title="filled: ours, hollow: the paper's")
    figure.savefig(target, dpi=120)


def plot_curves(figures: Sequence[dict[str, Any]], target: Path) -> None:
    """Validation error against the step, a panel a problem; the band spans the seeds."""
    problems = list(dict.fromkeys(cell["problem"] for cell in figures))
    figure = Figure(figsize=(4 * len(problems), 3.6), layout="constrained")
    methods = list(dict.fromkeys(cell["method"] for cell in figures))
    panels = figure.subplots(1, len(problems), squeeze=False)[0]
    for axes, problem in zip(panels, problems, strict=True):
        for cell in (cell for cell in figures if cell["problem"] == problem):
            kept = [
                (at[0]["step"], errors)
                for at in zip(*cell["curves"], strict=True)
                if (errors := [e["error"] for e in at if e["error"] is not None])
            ]
            steps, by_step = [s for s, _ in kept], [errors for _, errors in kept]
            color = f"C{methods.index(cell['method']) % 10}"
            style = "-" if methods.index(cell["method"]) < 10 else "--"
            axes.plot(steps, [fmean(e) for e in by_step], color=color, ls=style)
            low, high = [min(e) for e in by_step], [max(e) for e in by_step]
            axes.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
            axes.plot([], [], color=color, ls=style, label=cell["method"])
        axes.set(title=problem, xlabel="step", yscale="log")
    figure.axes[0].set_ylabel("validation error, nats²")
    figure.axes[0].legend(fontsize="x-small")
    figure.savefig(target, dpi=120)
