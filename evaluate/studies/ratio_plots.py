"""Plots of a table of log ratios, as PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

METRICS = ["error", "error_deviation", "paper_error"]
LABELS = {"error": "validation error, nats²", "divergence": "mean log ratio over p₁, nats"}


def style_of(index: int) -> dict[str, str]:
    """Color and line of a method."""
    return {"color": f"C{index % 10}", "ls": "-" if index < 10 else "--"}


def plot_table(rows: Sequence[dict[str, Any]], target: Path) -> None:
    """Mean squared error by problem, a line a method; hollow marks are the paper's."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    frame = pd.DataFrame(rows).astype(dict.fromkeys(METRICS, float))
    problems = list(frame["problem"].unique())
    for index, (method, own) in enumerate(frame.groupby("method", sort=False)):
        place = own["problem"].map(problems.index)
        means, deviations, paper = (own[name] for name in METRICS)
        style = {"marker": "o", **style_of(index)}
        axes.errorbar(place, means, deviations.fillna(0), label=method, **style)
        axes.plot(place, paper, **{**style, "ls": "", "mfc": "none"})
    axes.set_xticks(range(len(problems)), problems, rotation=20, ha="right")
    axes.set(yscale="log", ylabel="mean squared error of the log ratio, nats²")
    axes.legend(fontsize="small", ncols=2, title="filled: ours, hollow: the paper's")
    figure.savefig(target, dpi=120)


def plot_curves(
    rows: Sequence[dict[str, Any]],
    curves: Sequence[list[list[dict[str, Any]]]],
    name: str,
    target: Path,
) -> None:
    """A metric on the validation points against the step, a panel a problem; the band spans the
    seeds, a dashed line is the true value where there is one.

    Args:
        curves: of every row, a list a seed of the metrics by the step.
        name: a key of ``LABELS``; "error" is drawn on a logarithmic axis.
    """
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(4 * len(problems), 3.6), layout="constrained")
    panels = dict(zip(problems, figure.subplots(1, len(problems), squeeze=False)[0], strict=True))
    for row, curve in zip(rows, curves, strict=True):
        axes, style = panels[row["problem"]], style_of(methods.index(row["method"]))
        found = pd.DataFrame(at for seed in curve for at in seed).dropna(subset=name)
        by_step = found.astype({name: float}).groupby("step")[name]
        axes.plot(by_step.mean(), label=row["method"], **style)
        low, high = by_step.min(), by_step.max()
        axes.fill_between(low.index, low, high, color=style["color"], alpha=0.2, lw=0)
        axes.set(
            title=row["problem"], xlabel="step", yscale="log" if name == "error" else "linear"
        )
    truths = {row["problem"]: row["divergence_truth"] for row in rows}
    for problem, axes in panels.items():
        if name == "divergence" and truths[problem] is not None:
            axes.axhline(truths[problem], color="black", ls="--", lw=1, label="truth")
            axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.25 * truths[problem])
    figure.axes[0].set_ylabel(LABELS[name])
    figure.axes[0].legend(fontsize="x-small")
    figure.savefig(target, dpi=120)
