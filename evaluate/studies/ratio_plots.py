"""The plot of a table of log ratios."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ebm_app.io.writing import save_figure

Row = dict[str, Any]


def plot_curves(
    rows: Sequence[Row], curves: Sequence[list[list[Row]]], name: str, target: Path
) -> None:
    """A metric on the validation points against the step, a panel a problem; the band spans the
    seeds, a dashed line is the true value where there is one.

    Args:
        curves: of every row, a list a seed of the metrics by the step.
        name: a key of ``METRICS`` of the table; "error" is drawn on a logarithmic axis.
    """
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(4 * len(problems), 3.6), layout="constrained")
    panels = dict(zip(problems, figure.subplots(1, len(problems), squeeze=False)[0], strict=True))
    for row, curve in zip(rows, curves, strict=True):
        axes, color = panels[row["problem"]], f"C{methods.index(row['method'])}"
        found = pd.DataFrame(at for seed in curve for at in seed).dropna(subset=name)
        by_step = found.astype({name: float}).groupby("step")[name]
        axes.plot(by_step.mean(), label=row["method"], color=color)
        low, high = by_step.min(), by_step.max()
        axes.fill_between(low.index, low, high, color=color, alpha=0.2, lw=0)
        axes.set(title=row["problem"], xlabel="step")
        if name == "error":
            axes.set_yscale("log")
        elif row["divergence_truth"] is not None:
            axes.axhline(row["divergence_truth"], color="black", ls="--", lw=1)
            axes.set_ylim(0, 1.25 * row["divergence_truth"])
    figure.axes[0].set_ylabel(f"{name} in validation")
    figure.axes[0].legend(fontsize="x-small")
    save_figure(figure, target, dpi=120)
