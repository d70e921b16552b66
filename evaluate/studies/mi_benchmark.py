"""Estimates of mutual information beside the truth, on the tasks of Czyz et al.
(arXiv:2306.11078)."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebm_app.tabular.known import KnownInformation
from ebm_app.tabular.mutual_information import mutual_information
from ebm_app.tabular.neighbours import neighbour_information

#: an estimate is right within a share of the truth or so many nats
SHARE, NATS = 0.05, 0.02
METHODS = {"estimate": "ours", "ksg": "nearest neighbours", "cca": "canonical correlations"}
MARKS = {"estimate": "o", "ksg": "x", "cca": "+"}


def canonical_information(x: np.ndarray, y: np.ndarray) -> float:
    """-1/2 sum_i log(1 - rho_i^2) with the canonical correlations rho of (N, dx) and (N, dy): the
    mutual information of a Gaussian, in nats."""
    bases = [np.linalg.svd(part - part.mean(0), full_matrices=False)[0] for part in (x, y)]
    correlations = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    return float(-0.5 * np.log1p(-np.square(correlations)).sum())


def benchmark_row(
    name: str, task: KnownInformation, num_rows: int, seed: int, steps: int
) -> dict[str, Any]:
    """One data set of a task: the truth, our estimate, and those of nearest neighbours (of
    columns of unit variance) and of canonical correlations, in nats; and our seconds."""
    x, y = (part.numpy() for part in task.draw(num_rows, torch.Generator().manual_seed(seed)))
    begin = time.perf_counter()
    found = mutual_information(x, y, steps=steps, random_state=seed)
    seconds = time.perf_counter() - begin
    return {
        "task": name,
        "seed": seed,
        "truth": task.mutual_information,
        "estimate": found.value,
        "ksg": neighbour_information(x / x.std(0), y / y.std(0)),
        "cca": canonical_information(x, y),
        "seconds": seconds,
        **found.figures(),
    }


def by_task(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over the data sets of a task, the share of intervals that hold the truth, and of our
    estimates the standard deviation (None of a single one)."""
    table = []
    for name in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == name]
        keys = ("truth", *METHODS, "stderr", "lower_bound", "seconds")
        values = [row["estimate"] for row in of_task]
        held = [row["interval"][0] <= row["truth"] <= row["interval"][1] for row in of_task]
        table.append(
            {
                "task": name,
                **{key: float(np.mean([row[key] for row in of_task])) for key in keys},
                "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
                "covered": float(np.mean(held)),
                "num_seeds": len(of_task),
                "warned": float(np.mean([bool(row["warnings"]) for row in of_task])),
            }
        )
    return table


def allowance(row: Mapping[str, Any]) -> float:
    """How far from the truth an estimate is right: 5 percent or 0.02 nats."""
    return max(SHARE * row["truth"], NATS)


def scoreboard(table: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Of every method, on how many tasks it is right, and on how many the nearest."""
    nearest = [min(METHODS, key=lambda m, r=row: abs(r[m] - r["truth"])) for row in table]
    return {
        method: {
            "right": sum(abs(row[method] - row["truth"]) <= allowance(row) for row in table),
            "nearest": nearest.count(method),
        }
        for method in METHODS
    }


def plot_benchmark(table: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Estimates less the truth, a line a task; the grey band is where an estimate is right."""
    from matplotlib.figure import Figure  # a second to import

    figure = Figure(figsize=(7, 0.22 * len(table) + 1.2), layout="constrained")
    axes = figure.subplots()
    lines = np.arange(len(table))
    allowed = np.array([allowance(row) for row in table])
    axes.barh(lines, 2 * allowed, left=-allowed, height=1.0, color="0.9", lw=0)
    for method, label in METHODS.items():
        errors = [row[method] - row["truth"] for row in table]
        axes.plot(errors, lines, marker=MARKS[method], ls="", label=label, ms=5)
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(lines, [row["task"].replace("_", " ") for row in table], fontsize=7)
    axes.set(xlabel="estimate less the truth, nats", xlim=(-0.8, 0.8))
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(target, dpi=130)
