"""Plots of the error bounds and of the errors that they bound."""

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

Row = dict[str, Any]


def distinct(rows: Sequence[Row], key: str) -> list[Any]:
    """The values of a key in the order of their first rows."""
    return list(dict.fromkeys(row[key] for row in rows))


def plot_theorem4(rows: Sequence[Row], target: Path) -> None:
    """|KL| and the root of its bound against K: a panel for every problem and path, a colour for
    every size of the error in the score.

    Args:
        rows: each with ``problem``, ``path``, ``error``, ``first_order``, ``bound`` and the fields
            of ``ebm_app.bounds.theorem4.KLBound``. target: a PNG file.
    """
    problems, paths = distinct(rows, "problem"), distinct(rows, "path")
    size = (1 + 3.4 * len(paths), 0.8 + 2.6 * len(problems))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(problems), len(paths), sharex=True, sharey="row", squeeze=False)
    for problem, line in zip(problems, grid, strict=True):
        for path, axes in zip(paths, line, strict=True):
            panel = [row for row in rows if (row["problem"], row["path"]) == (problem, path)]
            draw_theorem4(axes, panel)
            axes.set_title(f"{problem}, {path}", fontsize="medium")
        line[0].set_ylabel("nats")
    for axes in grid[-1]:
        axes.set_xlabel("steps K")
    entries = sorted(zip(*grid[0, 0].get_legend_handles_labels(), strict=True), key=itemgetter(1))
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize="small")
    figure.savefig(target, dpi=110)


def draw_theorem4(axes: Axes, rows: Sequence[Row]) -> None:
    """One panel of ``plot_theorem4``."""
    for error in distinct(rows, "error"):
        part = [row for row in rows if row["error"] == error]
        steps = [row["num_steps"] for row in part]
        name = f"error {error:g}" if error else "exact score"
        (curve,) = axes.plot(
            steps, [row["bound"] ** 0.5 for row in part], "--", label=f"{name}: bound"
        )
        axes.errorbar(
            steps,
            [abs(row["kl"]) for row in part],
            yerr=[row["kl_stderr"] for row in part],
            fmt="o",
            ms=4,
            capsize=2,
            color=curve.get_color(),
            label=f"{name}: |KL|",
        )
        if not error:
            slope = [abs(row["first_order"]) / row["num_steps"] for row in part]
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
    weightings = distinct(rows, "weighting")
    figure = Figure(figsize=(1 + 3.4 * len(weightings), 6.5), layout="constrained")
    grid = figure.subplots(2, len(weightings), sharex=True, sharey="row", squeeze=False)
    for weighting, (above, below) in zip(weightings, grid.T, strict=True):
        draw_proposition5(above, below, [row for row in rows if row["weighting"] == weighting])
        above.set_title(f"lambda: {weighting}", fontsize="medium")
        below.set_xlabel("examples N")
    grid[0, 0].set_ylabel("N E[(s_hat - s)^2], lines: e")
    grid[1, 0].set_ylabel("E[KL^2]^(1/2), dashed: bound (nats)")
    for axes in grid[:, 0]:
        axes.legend(fontsize="small")
    figure.savefig(target, dpi=110)


def draw_proposition5(above: Axes, below: Axes, rows: Sequence[Row]) -> None:
    """One column of ``plot_proposition5``."""
    for index, objective in enumerate(distinct(rows, "objective")):
        part = [row for row in rows if row["objective"] == objective]
        sizes = [row["num_examples"] for row in part]
        style = {"color": f"C{index}", "marker": "o", "ms": 4, "capsize": 3, "ls": "none"}
        scaled = [row["scaled_error"] for row in part]
        stderr = [row["scaled_error_stderr"] for row in part]
        above.errorbar(sizes, scaled, yerr=stderr, label=objective, **style)
        above.axhline(part[0]["e"], color=style["color"], lw=1)
        root = [row["kl_square"] ** 0.5 for row in part]
        # of a square root, to first order
        error = [
            row["kl_square_stderr"] / (2 * value) for row, value in zip(part, root, strict=True)
        ]
        below.errorbar(sizes, root, yerr=error, label=objective, **style)
        below.plot(sizes, [row["bound"] ** 0.5 for row in part], "--", color=style["color"])
    sizes = distinct(rows, "num_examples")
    for axes in (above, below):
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would overlap on a short axis
        axes.set_yscale("log")
