"""Tables of a study, ours beside the paper's, as Markdown and CSV."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ebm_app.ratios.studies.reported import REPORTED

METRICS = {
    "error": "mean squared error of the log ratio, in nats²; in brackets the paper's",
    "divergence": "mean log ratio over p₁, which estimates the mutual information, in nats",
    "matrix": "mutual information of the learned matrix, -1/2 log det Σ, in nats",
}
COLUMNS = [
    "problem",
    "method",
    "learning_rate",
    "iterations",
    "nfe",
    "ms",
    *(f"{name}{part}" for name in METRICS for part in ("", "_deviation")),
    "divergence_truth",
    "paper_error",
    "paper_error_deviation",
    "paper_ms",
]


def rows_of(
    cells: Iterable[dict[str, Any]], times: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """One row a cell: its metrics, the paper's, and milliseconds a step where they were taken."""
    rows = []
    for cell in cells:
        key = (cell["problem"], cell["method"])
        paper = REPORTED.get(key)
        row = {name: cell[name] for name in COLUMNS if name in cell}
        row["ms"] = times.get(cell["problem"], {}).get(cell["method"])
        row["paper_error"] = paper and paper.mean
        row["paper_error_deviation"] = paper and paper.deviation
        row["paper_ms"] = paper and paper.ms
        rows.append(row)
    return rows


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A line a cell."""
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object).to_csv(index=False)


def to_markdown(rows: Sequence[dict[str, Any]], metric: str = "error") -> str:
    """Methods down, problems across; a cell is our mean +- deviation (the paper's mean)."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["problem"], row["method"]): _cell(row, metric) for row in rows}
    lines = [
        "| method | " + " | ".join(problems) + " |",
        "| --- |" + " ---: |" * len(problems),
        *(
            f"| {method} | " + " | ".join(cells.get((p, method), "") for p in problems) + " |"
            for method in methods
        ),
    ]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any], metric: str) -> str:
    if row.get(metric) is None:
        return "diverged"
    text, deviation = f"{row[metric]:.4g}", row.get(f"{metric}_deviation")
    paper = row.get(f"paper_{metric}")
    text += "" if deviation is None else f" ± {deviation:.2g}"
    return text if paper is None else f"{text} ({paper:.4g})"
