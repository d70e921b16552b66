"""The plot of the benchmark of mutual information."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from studies.ratios.benchmark import METHODS, allowance, methods_of

MARKS = {
    "estimate": {"marker": "o", "color": "C1", "zorder": 3},
    "ksg": {"marker": "x", "color": "C2"},
    "cca": {"marker": "+", "color": "C0"},
    "infonce": {"marker": "1", "color": "C3"},
    "nwj": {"marker": "2", "color": "C4"},
    "mine": {"marker": "3", "color": "C5"},
}


def plot_benchmark(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Estimates less the truth, a line a task; the grey band is where an estimate is right."""
    figure = Figure(figsize=(7, 0.22 * len(table) + 1.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    lines = np.arange(len(table))
    allowed = np.array([allowance(row) for row in table])
    axes.barh(lines, 2 * allowed, left=-allowed, height=1.0, color="0.9", lw=0)
    for method in methods_of(table):
        shown = [row[method] - row["truth"] for row in table]
        axes.plot(shown, lines, **MARKS[method], ls="", label=METHODS[method], ms=5)
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(lines, [row["task"].replace("_", " ") for row in table], fontsize=7)
    axes.set(
        xlabel="estimate less the truth, nats", xlim=(-0.8, 0.8), ylim=(-0.5, len(table) - 0.5)
    )
    axes.invert_yaxis()
    axes.legend(loc="lower right", fontsize="small")
    return figure
