"""Plots of the error bounds and of the errors that they bound."""

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

Row = dict[str, Any]


def plot_theorem4(rows: Sequence[Row], target: Path) -> None:
    """|KL| and the root of its bound against K: a panel for every problem and path, a colour for
    every size of the error in the score.

    Args:
        rows: each with ``problem``, ``path``, ``error``, ``first_order``, ``bound`` and the fields
            of ``studies.bounds.theorem4.KLBound``. target: a PNG file.
    """
    panels = dict(list(pd.DataFrame(rows).groupby(["problem", "path"], sort=False)))
    problems, paths = (list(dict.fromkeys(names)) for names in zip(*panels, strict=True))
    size = (1 + 3.4 * len(paths), 0.8 + 2.6 * len(problems))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(problems), len(paths), sharex=True, sharey="row", squeeze=False)
    for problem, line in zip(problems, grid, strict=True):
        for path, axes in zip(paths, line, strict=True):
            draw_theorem4(axes, panels[problem, path])
            axes.set_title(f"{problem}, {path}", fontsize="medium")
        line[0].set_ylabel("nats")
    for axes in grid[-1]:
        axes.set_xlabel("steps K")
    entries = sorted(zip(*grid[0, 0].get_legend_handles_labels(), strict=True), key=itemgetter(1))
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize="small")
    figure.savefig(target, dpi=110)


def draw_theorem4(axes: Axes, panel: pd.DataFrame) -> None:
    """One panel of ``plot_theorem4``."""
    for error, part in panel.groupby("error", sort=False):
        steps, name = part["num_steps"], f"error {error:g}" if error else "exact score"
        (curve,) = axes.plot(steps, part["bound"] ** 0.5, "--", label=f"{name}: bound")
        style = {"fmt": "o", "ms": 4, "capsize": 2, "color": curve.get_color()}
        axes.errorbar(steps, part["kl"].abs(), part["kl_stderr"], label=f"{name}: |KL|", **style)
        if not error:
            slope = part["first_order"].abs() / steps
            axes.plot(steps, slope, ":", color="grey", label=f"{name}: |KL| to first order")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")


def plot_proposition5(rows: Sequence[Row], target: Path) -> None:
    """N times the squared error of the time score and its limit e, and the bound on KL, against N:
    a column for every weighting, a colour for every objective.

    Args:
        rows: each with ``objective``, ``weighting``, ``num_examples``, ``e``, ``scaled_error``,
            ``scaled_error_stderr``, ``kl_square``, ``kl_square_stderr`` and ``bound``.
        target: a PNG file.
    """
    columns = dict(list(pd.DataFrame(rows).groupby("weighting", sort=False)))
    figure = Figure(figsize=(1 + 3.4 * len(columns), 6.5), layout="constrained")
    grid = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    for (weighting, column), (above, below) in zip(columns.items(), grid.T, strict=True):
        draw_proposition5(above, below, column)
        above.set_title(f"lambda: {weighting}", fontsize="medium")
        below.set_xlabel("examples N")
    grid[0, 0].set_ylabel("N E[(s_hat - s)^2], lines: e")
    grid[1, 0].set_ylabel("E[KL^2]^(1/2), dashed: bound (nats)")
    for axes in grid[:, 0]:
        axes.legend(fontsize="small")
    figure.savefig(target, dpi=110)


def draw_proposition5(above: Axes, below: Axes, column: pd.DataFrame) -> None:
    """One column of ``plot_proposition5``."""
    for index, (objective, part) in enumerate(column.groupby("objective", sort=False)):
        sizes, color = part["num_examples"], f"C{index}"
        style = {"color": color, "fmt": "o", "ms": 4, "capsize": 3, "label": objective}
        above.errorbar(sizes, part["scaled_error"], part["scaled_error_stderr"], **style)
        above.axhline(part["e"].iloc[0], color=color, lw=1)
        root = part["kl_square"] ** 0.5
        # of a square root, to first order
        below.errorbar(sizes, root, part["kl_square_stderr"] / (2 * root), **style)
        below.plot(sizes, part["bound"] ** 0.5, "--", color=color)
    for axes in (above, below):
        axes.set_xscale("log")
        axes.set_xlim(sizes.min() / 1.5, sizes.max() * 1.5)  # one size alone has no width
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would overlap on a short axis
        axes.set_yscale("log")
