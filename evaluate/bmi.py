"""Mutual information of forty known distributions (arXiv:2306.11078), beside the truth.

python evaluate/bmi.py
python evaluate/bmi.py --tasks normal_1x1 spiral_3x3 --num_seeds 3
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ebm_app.io.command_line import parse
from ebm_app.io.fields import PositiveInt, Seed, Steps, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.io.start import run_script
from studies.grid import to_markdown

if TYPE_CHECKING:
    from ebm_app.tabular.known import KnownInformation

#: ours, nearest neighbours, and canonical correlations; each right within a share of the truth or
#: so many nats
METHODS, SHARE, NATS = ("estimate", "ksg", "cca"), 0.05, 0.02
Row = Mapping[str, Any]


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    tasks: tuple[str, ...] = setting("such as normal_1x1; all if not given", ())
    num_rows: PositiveInt = setting("rows drawn of each task", 10_000)
    num_seeds: PositiveInt = setting("data sets of each task", 1)
    iterations: Steps = setting("steps of the classifiers at most", 2_000)
    seed: Seed = setting("the first of the seeds", 0)
    output_dir: Path = setting("where the record goes", Path("runs/bmi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate; the table, a row a task, and how many tasks each method is right on."""
    args = parse(Arguments, __doc__, argv)
    from studies.mi_tasks import TASKS  # seconds to import: --help does without

    names = [choose("task", name, TASKS) for name in args.tasks] or list(TASKS)
    output = Output(args.output_dir / "bmi.json", to_dict(args))
    rows: list[Row] = []
    table = []
    for name in names:
        for seed in range(args.seed, args.seed + args.num_seeds):
            rows.append(data_set_row(name, TASKS[name], args.num_rows, seed, args.iterations))
        table.append(task_row(rows[-args.num_seeds :]))
        output.write({"rows": rows})
        print(to_markdown(table[-1:]), flush=True)
    right = {method: sum(is_right(row, method) for row in table) for method in METHODS}
    answer = {"table": table, "right": right, "num_rows": args.num_rows}
    output.save({**answer, "rows": rows})
    return answer


def data_set_row(name: str, task: "KnownInformation", num_rows: int, seed: int, steps: int) -> Row:
    """One data set of a task: the truth, our estimate, and those of nearest neighbours (of
    columns of unit variance) and of canonical correlations, in nats."""
    from ebm_app.tabular.mutual_information import mutual_information
    from ebm_app.tabular.neighbours import neighbour_information

    x, y = (part.numpy() for part in task.draw(num_rows, torch.Generator().manual_seed(seed)))
    found = mutual_information(x, y, steps=steps, random_state=seed)
    return {
        "task": name,
        "seed": seed,
        "truth": task.mutual_information,
        "estimate": found.value,
        "ksg": neighbour_information(x / x.std(0), y / y.std(0)),
        "cca": canonical_information(x, y),
        **found.figures(),
    }


def canonical_information(x: np.ndarray, y: np.ndarray) -> float:
    """-1/2 sum_i log(1 - rho_i^2) with the canonical correlations rho of (N, dx) and (N, dy): the
    mutual information of a Gaussian, in nats."""
    bases = [np.linalg.svd(part - part.mean(0), full_matrices=False)[0] for part in (x, y)]
    correlations = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    return float(-0.5 * np.log1p(-np.square(correlations)).sum())


def task_row(rows: Sequence[Row]) -> Row:
    """Means over the data sets of a task, and the share of our intervals that hold the truth."""
    keys = ("truth", *METHODS, "stderr", "lower_bound")
    held = [row["interval"][0] <= row["truth"] <= row["interval"][1] for row in rows]
    means = {key: float(np.mean([row[key] for row in rows])) for key in keys}
    return {
        "task": rows[0]["task"],
        **means,
        "covered": float(np.mean(held)),
        "num_seeds": len(rows),
    }


def is_right(row: Row, method: str) -> bool:
    """Whether an estimate is within 5 percent or 0.02 nats of the truth."""
    return abs(row[method] - row["truth"]) <= max(SHARE * row["truth"], NATS)


if __name__ == "__main__":
    sys.exit(run_script(main))
