"""Estimate the known mutual information of forty distributions (arXiv:2306.11078).

The distributions come from another package: pip install benchmark-mi "jax<0.4.34".

python evaluate/mi_benchmark.py --num_rows 1000
python evaluate/mi_benchmark.py --tasks 1v1-normal-0.75
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import parse, run_script
from ebm_app.ratios.information import mutual_information
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, Seed, Steps, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.registry import choose


@configuration(kw_only=True)
class Arguments:
    tasks: tuple[str, ...] = setting("tasks such as 1v1-normal-0.75, by default all", ())
    num_rows: PositiveInt = setting("rows of each task", 10_000)
    iterations: Steps = setting("max training steps of each network", 1_000)
    seed: Seed = setting("seed of data and training", 0)
    output_dir: Path = setting("folder of the record", Path("runs/mi_benchmark"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate each task; return the table and how many intervals contain the true value."""
    args = parse(Arguments, __doc__, argv)
    try:
        from bmi.benchmark import BENCHMARK_TASKS
    except (ImportError, AttributeError) as error:  # newer versions of jax are not supported
        raise UserError(
            f'Cannot import the tasks ({error}). Run pip install benchmark-mi "jax<0.4.34".'
        ) from None
    names = [choose("task", name, BENCHMARK_TASKS) for name in args.tasks or BENCHMARK_TASKS]
    output = Output(args.output_dir / "mi_benchmark.json", args)
    rows: list[dict[str, Any]] = []
    for name in names:
        task = BENCHMARK_TASKS[name]
        x, y = task.sample(args.num_rows, args.seed)
        estimate = mutual_information(x, y, steps=args.iterations, random_state=args.seed)
        row = {"task": name, "truth": task.mutual_information, **estimate.figures()}
        low, high = estimate.interval or (None, None)
        row["held"] = None if low is None else low <= row["truth"] <= high
        rows.append(row)
        output.write({"table": rows})
        shown = {"task": name, "truth": row["truth"], "value": row["value"], "held": row["held"]}
        print(to_markdown([{**shown, "low": low, "high": high}]), flush=True)
    counts = {
        "held": sum(row["held"] is True for row in rows),
        "withheld": sum(row["held"] is None for row in rows),
    }
    output.save({"table": rows, **counts})
    return {"table": rows, **counts}


if __name__ == "__main__":
    raise SystemExit(run_script(main))
