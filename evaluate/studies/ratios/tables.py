"""Tables of a study, ours beside the paper's, as Markdown and CSV."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

with Path(__file__).with_name("reported.csv").open(encoding="utf-8", newline="") as _file:
    _, *_PAPER = csv.reader(_file)
#: (problem, method) -> what the paper reports (arXiv:2502.02300, appendices E and F): mean and
#: standard deviation over three runs of the mean squared error of the log ratio, in nats^2, and
#: milliseconds a step on the authors' machine
REPORTED: dict[tuple[str, str], tuple[float, float, float]] = {
    (problem, method): tuple(map(float, cell)) for problem, method, *cell in _PAPER
}
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
        paper = REPORTED.get((cell["problem"], cell["method"]), (None, None, None))
        row = {name: cell[name] for name in COLUMNS if name in cell}
        row["ms"] = times.get(cell["problem"], {}).get(cell["method"])
        row |= zip(("paper_error", "paper_error_deviation", "paper_ms"), paper, strict=True)
        rows.append(row)
    return rows


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A line a cell."""
    import pandas as pd  # half a second to import

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
