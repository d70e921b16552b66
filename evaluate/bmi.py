"""Mutual information of forty known distributions (arXiv:2306.11078), beside the truth.

python evaluate/bmi.py
python evaluate/bmi.py --tasks normal_1x1 spiral_3x3 --num_seeds 3
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.io.command_line import parse
from ebm_app.io.fields import PositiveInt, Seed, Steps, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    tasks: tuple[str, ...] = setting("such as normal_1x1; all if not given", ())
    num_rows: PositiveInt = setting("rows drawn of each task", 10_000)
    num_seeds: PositiveInt = setting("data sets of each task", 1)
    iterations: Steps = setting("steps of the classifiers at most", 2_000)
    seed: Seed = setting("the first of the seeds", 0)
    output_dir: Path = setting("where the record and the plot go", Path("runs/bmi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate; the table, a row a task."""
    args = parse(Arguments, __doc__, argv)
    # seconds to import: --help does without
    from studies.mi_benchmark import METHODS, benchmark_row, by_task, plot_benchmark, scoreboard
    from studies.mi_tasks import TASKS

    names = [choose("task", name, TASKS) for name in args.tasks] or list(TASKS)
    output = Output(args.output_dir / "bmi.json", to_dict(args))
    rows: list[dict[str, Any]] = []
    print(f"{'task':24} " + " ".join(f"{part:>8}" for part in ("truth", "s.e.", *METHODS)))
    for name in names:
        for seed in range(args.seed, args.seed + args.num_seeds):
            rows.append(benchmark_row(name, TASKS[name], args.num_rows, seed, args.iterations))
        last = by_task(rows)[-1]
        shown = [last[part] for part in ("truth", "stderr", *METHODS)]
        print(f"{name:24} " + " ".join(f"{value:8.4f}" for value in shown), flush=True)
        output.write({"rows": rows})
    table = by_task(rows)
    answer = {"table": table, "scoreboard": scoreboard(table), "num_rows": args.num_rows}
    with output.saving({**answer, "rows": rows}):
        plot_benchmark(table, output.folder / "bmi.png")
    return answer


if __name__ == "__main__":
    sys.exit(run_script(main))
