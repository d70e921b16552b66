"""The picture of what things cost."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

Rows = list[dict[str, Any]]


def plot_speed(parts: dict[str, Rows], target: Path) -> None:
    """Training steps, their growth, and likelihoods as a PNG; parts that are missing are left
    out."""
    panels = {name: PANELS[name] for name in PANELS if name in parts}
    if not panels:
        return
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, panel) in zip(grid, panels.items(), strict=True):
        panel(axes, parts[name])
    figure.savefig(target, dpi=110)


def plot_steps(axes: Axes, rows: Rows) -> None:
    """Bars of training steps in units of the bare network."""
    names = [row["step"] for row in rows]
    values = [row["of the bare network"] for row in rows]
    bars = axes.barh(names, values, color=["grey", *["C0"] * (len(rows) - 1)])
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(xlabel="time of a training step, bare network = 1")


def plot_growth(axes: Axes, rows: Rows) -> None:
    """Time of an image against the number of pixels and the batch."""
    labels = [f"{row['batch']} of {row['pixels']}" for row in rows]
    for name in ("ctsm_v", "tsm"):
        axes.plot(labels, [row[f"{name}, ms an image"] for row in rows], "o", label=name)
    axes.set(yscale="log", ylabel="ms an image of a training step", xlabel="batch")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params("x", rotation=30)
    axes.legend()


def plot_likelihood(axes: Axes, rows: Rows) -> None:
    """Error against evaluations, by fixed nodes and by adaptive solves."""
    for label, marker in (("nodes", "o-"), ("rk45", "s--")):
        own = [row for row in rows if label in row["by"]]
        points = [(row["evaluations"], row["off by, bits per dim"]) for row in own]
        axes.plot(*zip(*points, strict=True), marker, label=label)
    axes.set(xscale="log", yscale="log", xlabel="evaluations of the network")
    axes.set(ylabel="largest error of the integral, bits per dim")
    axes.legend()


PANELS = {"training": plot_steps, "growth": plot_growth, "likelihood": plot_likelihood}
