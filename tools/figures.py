"""Plot the figures of docs/paper.md from the records in docs/results.

python tools/figures.py

The records are made by ``make paper``. Lines are means over seeds and bands standard deviations.
"""

import json
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results import RESULTS, ROOT, paper_rows

#: Name and colour of each method in both figures
METHODS = {
    "tsm_stein": ("TSM", "C3"),
    "ctsm_time1": ("CTSM", "C0"),
    "ctsm_v_time1": ("CTSM-v", "C2"),
}
#: Dimension of the curves of the error over training steps
DIM = 320
Rows = list[dict[str, Any]]


def main() -> None:
    """Write docs/paper-gaussians.png and docs/paper-information.png."""
    mpl.rcParams |= {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    lines = (RESULTS / "mi.jsonl").read_text(encoding="utf-8").splitlines()
    for name, figure in {
        "gaussians": plot_gaussians(),
        "information": plot_information([json.loads(line) for line in lines]),
    }.items():
        figure.savefig(ROOT / "docs" / f"paper-{name}.png", dpi=130)


def rows_of(problem: str, method: str) -> tuple[list[int], Rows]:
    """Return the dimensions and rows of the problems of a family, by a method."""
    found = [row for row in paper_rows(problem) if row["method"] == method]
    return [int(row["problem"].removeprefix(problem)) for row in found], found


def plot_gaussians() -> Figure:
    """Plot the error of the log ratio of distant Gaussians by dimension, like the paper's figure
    2, with its means as dashed lines."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for method, (name, color) in METHODS.items():
        dims, found = rows_of("gaussians_d", method)
        means = [row["error"] for row in found]
        band(axes, dims, means, [row["error_deviation"] for row in found], name, color)
        axes.plot(dims, [row["paper_error"] for row in found], ls=":", color=color)
    axes.plot([], [], ls=":", color="0.4", label="paper, 4 times the steps")
    axes.set(xlabel="dimension D", ylabel="mean squared error in nats²", yscale="log")
    axes.set_xticks(dims)
    axes.legend(frameon=False)
    return figure


def plot_information(runs: Rows) -> Figure:
    """Plot the time per step, the estimates by dimension, and the error over training steps, like
    the paper's figure of mutual information."""
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    times, values, errors = figure.subplots(1, 3)
    for method, (name, color) in METHODS.items():
        dims, found = rows_of("mi_d", method)
        times.plot(dims, [row["ms"] for row in found], "o-", ms=4, color=color, label=name)
        means, deviations = ([row[key] for row in found] for key in ("matrix", "matrix_deviation"))
        band(values, dims, means, deviations, name, color)
        (last,) = (row for row in found if row["problem"] == f"mi_d{DIM}")
        keys = ("problem", "method", "learning_rate", "iterations")
        curves = [run["curve"] for run in runs if all(run[key] == last[key] for key in keys)]
        steps = [point[0] for point in curves[0]]
        gaps = [
            [abs(point[2] - DIM / 4) for point in points] for points in zip(*curves, strict=True)
        ]
        spread = [stdev(gap) if len(gap) > 1 else None for gap in gaps]
        band(errors, steps, list(map(fmean, gaps)), spread, name, color)
    values.plot(dims, [dim / 4 for dim in dims], "k--", lw=1, label="truth")
    times.set(xlabel="dimension D", ylabel="ms per step", yscale="log")
    values.set(xlabel="dimension D", ylabel="mutual information in nats")
    errors.set(xlabel="training steps", ylabel=f"error in nats, D = {DIM}", yscale="log")
    values.legend(frameon=False)
    return figure


def band(
    axes: Axes,
    x: Sequence[float],
    means: Sequence[float | None],
    deviations: Sequence[float | None],
    name: str,
    color: str,
) -> None:
    """Plot the means that are finite, and a band of one standard deviation, if it is known."""
    points = zip(x, means, deviations, strict=True)
    finite = [(at, mean, deviation or 0.0) for at, mean, deviation in points if mean is not None]
    x, means, deviations = map(np.array, zip(*finite, strict=True))
    axes.plot(x, means, "o-", ms=4, color=color, label=name)
    low = np.maximum(means - deviations, means / 10)  # positive on a logarithmic axis
    axes.fill_between(x, low, means + deviations, color=color, alpha=0.2, lw=0)


if __name__ == "__main__":
    main()
