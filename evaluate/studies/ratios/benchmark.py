"""Estimates of mutual information beside the truth, on the tasks of Czyz et al.
(arXiv:2306.11078)."""

import csv
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebm_app.ratios.mi_task import MITask
from ebm_app.tabular.mutual_information import MISettings, mutual_information
from ebm_app.tabular.neighbours import neighbour_information
from ebm_app.tabular.preprocessing import standardise

#: an estimate is right within a share of the truth or so many nats
SHARE, NATS = 0.05, 0.02
#: what is run
OWN = {"estimate": "ours", "ksg": "nearest neighbours", "cca": "canonical correlations"}
#: what the package benchmark-mi finds in rows of its own draw
REPORTED = {"infonce": "InfoNCE", "nwj": "NWJ", "mine": "MINE"}
METHODS = OWN | REPORTED
#: of that draw
REPORTED_ROWS = 10_000


@cache
def reported_estimates() -> dict[str, dict[str, float]]:
    """Task -> method -> nats, made by tools/bmi_estimates.py."""
    file = Path(__file__).with_name("bmi_estimates.csv")
    found: dict[str, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            found.setdefault(line["task"], {})[line["method"]] = float(line["estimate"])
    return found


def canonical_information(x: np.ndarray, y: np.ndarray) -> float:
    """-1/2 sum_i log(1 - rho_i^2) with the canonical correlations rho of (N, dx) and (N, dy): the
    mutual information of a Gaussian, in nats."""
    bases = [np.linalg.svd(part - part.mean(0), full_matrices=False)[0] for part in (x, y)]
    correlations = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    return float(-0.5 * np.log1p(-np.square(correlations)).sum())


def benchmark_row(
    name: str, task: MITask, num_rows: int, seed: int, settings: MISettings
) -> dict[str, Any]:
    """One data set of a task: the truth, our estimate, and those of nearest neighbours (of
    columns of unit variance) and of canonical correlations, in nats; and our seconds."""
    x, y = (part.numpy() for part in task.draw(num_rows, torch.Generator().manual_seed(seed)))
    begin = time.perf_counter()
    found = mutual_information(x, y, settings, seed)
    seconds = time.perf_counter() - begin
    return {
        "task": name,
        "seed": seed,
        "truth": task.mutual_information,
        "estimate": found.value,
        "ksg": neighbour_information(standardise(x), standardise(y)),
        "cca": canonical_information(x, y),
        "seconds": seconds,
        **found.figures(),
    }


def methods_of(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods that every task has."""
    return [method for method in METHODS if all(method in row for row in table)]


def by_task(rows: Sequence[Mapping[str, Any]], num_rows: int) -> list[dict[str, Any]]:
    """Means over the data sets of a task, of ``num_rows`` rows each, the share of intervals that
    hold the truth, and of our estimates the standard deviation (None of a single one). Beside data
    sets of as many rows as theirs stand the ``reported_estimates``."""
    table = []
    for name in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == name]
        means = {
            key: float(np.mean([row[key] for row in of_task]))
            for key in ("truth", *OWN, "stderr", "lower_bound", "seconds")
        }
        values = [row["estimate"] for row in of_task]
        held = [row["interval"][0] <= row["truth"] <= row["interval"][1] for row in of_task]
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        table.append(
            {
                "task": name,
                **means,
                **(reported_estimates().get(name, {}) if num_rows == REPORTED_ROWS else {}),
                "deviation": deviation,
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
    methods = methods_of(table)
    nearest = [min(methods, key=lambda m, r=row: abs(r[m] - r["truth"])) for row in table]
    return {
        method: {
            "right": sum(abs(row[method] - row["truth"]) <= allowance(row) for row in table),
            "nearest": nearest.count(method),
        }
        for method in methods
    }
