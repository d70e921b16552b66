"""Mutual information of forty known distributions (arXiv:2306.11078), beside the truth.

The distributions are those of another package: pip install benchmark-mi "jax<0.4.34".

python evaluate/mi_benchmark.py
python evaluate/mi_benchmark.py --tasks 1v1-normal-0.75 --num_seeds 3
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.io.command_line import parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import PositiveInt, Seed, Steps, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.io.start import run_script
from studies.grid import to_markdown

#: right is what is within a share of the truth, or so many nats
SHARE, NATS = 0.05, 0.02
Row = dict[str, Any]


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    tasks: tuple[str, ...] = setting("such as 1v1-normal-0.75; all if not given", ())
    num_rows: PositiveInt = setting("rows drawn of each task", 10_000)
    num_seeds: PositiveInt = setting("data sets of each task", 1)
    iterations: Steps = setting("steps of the classifiers at most", 2_000)
    seed: Seed = setting("the first of the seeds", 0)
    output_dir: Path = setting("where the record goes", Path("runs/mi_benchmark"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate: a row a data set, and how many estimates are right, how many intervals hold the
    truth, and how many of those that do not come with a warning."""
    args = parse(Arguments, __doc__, argv)
    tasks = benchmark_tasks()
    names = [choose("task", name, tasks) for name in args.tasks] or list(tasks)
    output = Output(args.output_dir / "mi_benchmark.json", to_dict(args))
    rows: list[Row] = []
    for name in names:
        for seed in range(args.seed, args.seed + args.num_seeds):
            row = data_set_row(tasks[name], args.num_rows, seed, args.iterations)
            rows.append({"task": name, "seed": seed, **row})
            output.write({"table": rows})
            print(to_markdown(rows[-1:]), flush=True)
    missed = [row for row in rows if not row["held"]]
    answer = {
        "table": rows,
        "right": sum(row["right"] for row in rows),
        "held": len(rows) - len(missed),
        "missed_with_a_warning": sum(row["warnings"] > 0 for row in missed),
    }
    output.save(answer)
    return answer


def benchmark_tasks() -> dict[str, Any]:
    """By the names of the benchmark."""
    try:
        from bmi.benchmark import BENCHMARK_TASKS
    except (ImportError, AttributeError) as error:  # newer versions of jax lack what it asks for
        raise UserError(f'no tasks ({error}): pip install benchmark-mi "jax<0.4.34"') from None
    return BENCHMARK_TASKS


def data_set_row(task: Any, num_rows: int, seed: int, steps: int) -> Row:
    """The truth and the estimate from one data set, in nats."""
    from ebm_app.tabular.mutual_information import mutual_information

    x, y = task.sample(num_rows, seed)
    found, truth = (
        mutual_information(x, y, steps=steps, random_state=seed),
        task.mutual_information,
    )
    return {
        "truth": truth,
        "value": found.value,
        "stderr": found.stderr,
        "lower_bound": found.lower_bound,
        "neighbours": found.neighbours,
        "right": abs(found.value - truth) <= max(SHARE * truth, NATS),
        "held": found.interval[0] <= truth <= found.interval[1],
        "warnings": len(found.warnings),
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
