"""Plots of the error bounds and of the errors that they bound."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

Row = dict[str, Any]


def plot_theorem4(rows: Sequence[Row], target: Path) -> None:
    """|KL| and the root of its bound against K: a panel for every problem and path, a colour for
    every size of the error in the score; dotted, |KL| to first order in 1/K."""
    frame = pd.DataFrame(rows)
    problems, paths = frame["problem"].unique(), frame["path"].unique()
    size = (1 + 3.4 * len(paths), 0.8 + 2.6 * len(problems))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(problems), len(paths), sharex=True, sharey="row", squeeze=False)
    for axes, (problem, path) in zip(grid.flat, product(problems, paths), strict=True):
        panel = frame[(frame["problem"] == problem) & (frame["path"] == path)]
        for error, part in panel.groupby("error", sort=False):
            steps, name = part["num_steps"], f"error {error:g}" if error else "exact score"
            (curve,) = axes.plot(steps, part["bound"] ** 0.5, "--", label=f"{name}: bound")
            style = {"fmt": "o", "ms": 4, "capsize": 2, "color": curve.get_color()}
            label = f"{name}: |KL|"
            axes.errorbar(steps, part["kl"].abs(), part["kl_stderr"], label=label, **style)
            if not error:
                axes.plot(steps, part["first_order"].abs() / steps, ":", color="grey")
        axes.set_xscale("log", base=2)
        axes.set(title=f"{problem}, {path}", yscale="log", xlabel="steps K", ylabel="nats")
        axes.label_outer()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.savefig(target, dpi=110)


def plot_proposition5(rows: Sequence[Row], target: Path) -> None:
    """N times the squared error of the time score and its limit e, and the bound on KL, against N:
    a column for every weighting, a colour for every objective."""
    columns = dict(list(pd.DataFrame(rows).groupby("weighting", sort=False)))
    figure = Figure(figsize=(1 + 3.4 * len(columns), 6.5), layout="constrained")
    grid = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    for (weighting, column), (above, below) in zip(columns.items(), grid.T, strict=True):
        for index, (objective, part) in enumerate(column.groupby("objective", sort=False)):
            sizes, color = part["num_examples"], f"C{index}"
            style = {"color": color, "fmt": "o", "ms": 4, "capsize": 3, "label": objective}
            above.errorbar(sizes, part["scaled_error"], part["scaled_error_stderr"], **style)
            above.axhline(part["e"].iloc[0], color=color, lw=1)
            root = part["kl_square"] ** 0.5
            # of a square root, to first order
            below.errorbar(sizes, root, part["kl_square_stderr"] / (2 * root), **style)
            below.plot(sizes, part["bound"] ** 0.5, "--", color=color)
        above.set(title=f"lambda: {weighting}", xscale="log", yscale="log")
        below.set(xlabel="examples N", xscale="log", yscale="log")
    grid[0, 0].set_ylabel("N E[(s_hat - s)^2], lines: e")
    grid[1, 0].set_ylabel("E[KL^2]^(1/2), dashed: bound (nats)")
    grid[0, 0].legend(fontsize="small")
    figure.savefig(target, dpi=110)
