"""Mutual information of forty known distributions (arXiv:2306.11078), beside the truth.

The distributions are those of another package: pip install benchmark-mi "jax<0.4.34".

python evaluate/mi_benchmark.py
python evaluate/mi_benchmark.py --tasks 1v1-normal-0.75 --num_rows 1000
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import parse, run_script
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, Seed, Steps, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.registry import choose


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    tasks: tuple[str, ...] = setting("such as 1v1-normal-0.75; all if not given", ())
    num_rows: PositiveInt = setting("rows drawn of each task", 10_000)
    iterations: Steps = setting("steps of the classifiers at most", 2_000)
    seed: Seed = setting("of data and training", 0)
    output_dir: Path = setting("where the record goes", Path("runs/mi_benchmark"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate: a row a task, in nats, and how many intervals hold the truth."""
    args = parse(Arguments, __doc__, argv)
    try:
        from bmi.benchmark import BENCHMARK_TASKS
    except (ImportError, AttributeError) as error:  # newer versions of jax lack what it asks for
        raise UserError(f'no tasks ({error}): pip install benchmark-mi "jax<0.4.34"') from None
    from ebm_app.tabular.mutual_information import mutual_information

    names = [choose("task", name, BENCHMARK_TASKS) for name in args.tasks or BENCHMARK_TASKS]
    output = Output(args.output_dir / "mi_benchmark.json", args)
    rows: list[dict[str, Any]] = []
    for name in names:
        task = BENCHMARK_TASKS[name]
        x, y = task.sample(args.num_rows, args.seed)
        found = mutual_information(x, y, steps=args.iterations, random_state=args.seed)
        row = {"task": name, "truth": task.mutual_information, **found.figures()}
        row["held"] = found.interval[0] <= row["truth"] <= found.interval[1]
        rows.append(row)
        output.write({"table": rows})
        shown = {"task", "truth", "value", "stderr", "lower_bound", "neighbours", "held"}
        print(to_markdown([{key: row[key] for key in row if key in shown}]), flush=True)
    warned = sum(bool(row["warnings"]) and not row["held"] for row in rows)
    held = sum(row["held"] for row in rows)
    answer = {"table": rows, "held": held, "missed_with_a_warning": warned}
    output.save(answer)
    return answer


if __name__ == "__main__":
    sys.exit(run_script(main))
