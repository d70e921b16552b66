"""Mutual information: the paper's high-dimensional Gaussians, or your own data.

python evaluate/mi.py --quick
torchrun --standalone --nproc_per_node 2 evaluate/mi.py    (every cell, on two processes)
python evaluate/mi.py --x a.npy --y b.npy
python evaluate/mi.py --csv table.csv --x_columns age height --y_columns weight
python evaluate/mi.py --benchmark normal_1x1 spiral_3x3
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from tqdm.auto import tqdm

from ebm_app.io.command_line import given, parse, refuse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.ratios.mi_tasks import BMI_TASKS, MI_TASKS
from ebm_app.ratios.problems import INFORMATION_PROBLEMS
from ebm_app.tabular.classifier import ClassifierTraining
from ebm_app.tabular.columns import PairedData, read_csv_pair, read_pair
from ebm_app.tabular.mutual_information import Estimation, MISettings
from studies.mi_benchmark import METHODS, benchmark_row, by_task, plot_benchmark, scoreboard
from studies.ratio_tables import (
    StudyBudget,
    StudyFlags,
    budget_of,
    chosen_cells,
    run_study,
)

QUICK_PROBLEMS = ["mi_d40", "mi_d80"]
QUICK = StudyBudget(num_seeds=2, num_points=2_000, iterations=1_500, learning_rates=(5e-3,))
#: flags of the study, of an estimate from data, and of a table
STUDY, ESTIMATE = ("problems", "methods", "learning_rates", "quick"), ("num_folds",)
COLUMNS = ("x_columns", "y_columns")
#: with fewer rows there is too little to train and test on
MIN_ROWS = 100
NumRows = Annotated[int, Ge(MIN_ROWS), Le(1_000_000)]
#: a fold has rows of its own, however few there are
NumFolds = Annotated[int, Ge(3), Le(MIN_ROWS // 10)]


@configuration(kw_only=True)
class Arguments(StudyFlags):
    """The command line: of a study, of your own data (x, y, csv and their columns), or of data of
    known mutual information (benchmark, arXiv:2306.11078)."""

    x: str | None = setting("your own data: an .npy file, (N,) or (N, dx)", None)
    y: str | None = setting("your own data: an .npy file, (N,) or (N, dy)", None)
    csv: str | None = setting("a CSV file with a header, in place of --x and --y", None)
    x_columns: tuple[str, ...] = setting("columns of the CSV that are X", ())
    y_columns: tuple[str, ...] = setting("columns of the CSV that are Y", ())
    benchmark: tuple[str, ...] = setting(
        "tasks of known mutual information, such as normal_1x1; all for the forty", ()
    )
    num_rows: NumRows = setting("rows drawn of each task", 10_000)
    num_folds: NumFolds = setting("parts of the rows, each left out once", 3)
    output_dir: Path = setting("where runs, table and plots go; it is resumed", Path("runs/mi"))


def check(args: Arguments, flags: Collection[str]) -> None:
    """Raise a UserError for flags that were given and do not belong together."""
    data = any((args.x, args.y, args.csv))
    if not args.csv:
        refuse(flags, COLUMNS, "are columns of a table: give --csv")
    if not args.benchmark:
        refuse(flags, ["num_rows"], "is of the tasks of --benchmark: name some")
    if data or args.benchmark:
        refuse(flags, ["device"], "is of the study: an estimate from data runs on the CPU")
    if data:
        vain = [*STUDY, "benchmark", "num_seeds"]
        refuse(flags, vain, "has no effect with data of your own: leave it out")
    elif args.benchmark:
        refuse(flags, STUDY, "is of a study, not of --benchmark: leave it out")
    else:
        refuse(flags, ESTIMATE, "is of data: give --x and --y, --csv or --benchmark")


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """The estimate from the user's data, or a table; its metrics, on the main process."""
    args = parse(Arguments, __doc__, argv)
    check(args, given(args, argv))
    if args.x or args.y or args.csv:
        return estimate(args)
    if args.benchmark:
        return benchmark(args)
    problems = args.problems or (QUICK_PROBLEMS if args.quick else [])
    cells = chosen_cells(problems, args.methods, list(INFORMATION_PROBLEMS))
    return run_study(args, cells, budget_of(args, QUICK), "mi", ["divergence", "matrix"])


def estimate(args: Arguments) -> dict[str, Any]:
    """Mutual information of the user's data, in nats."""
    x, y = read(args)
    output = Output(args.output_dir / "mi_data.json", to_dict(args))
    estimation = Estimation(x, y, settings_of(args), args.seed)
    with tqdm(total=estimation.settings.training.steps, unit="step", leave=False) as bar:
        for at in estimation.run():
            bar.update(at.step - bar.n)
            bar.set_postfix_str(f"at least {at.so_far:.3f} nats so far")
    found = estimation.result()
    print(found.summary())
    answer = found.figures()
    with output.saving(answer):
        found.plot().savefig(output.folder / "mi_data.png")
    return answer


def benchmark(args: Arguments) -> dict[str, Any]:
    """Estimates beside the truth, a row a task."""
    names = list(BMI_TASKS) if args.benchmark == ("all",) else args.benchmark
    tasks = [choose("task", name, MI_TASKS) for name in names]
    output = Output(args.output_dir / "mi_benchmark.json", to_dict(args))
    rows: list[dict[str, Any]] = []
    print(f"{'task':24} " + " ".join(f"{part:>8}" for part in ("truth", "s.e.", *METHODS)))
    for name in tasks:
        for seed in range(args.seed, args.seed + (args.num_seeds or 1)):
            rows.append(
                benchmark_row(name, MI_TASKS[name], args.num_rows, seed, settings_of(args))
            )
        last = by_task(rows)[-1]
        shown = [last[part] for part in ("truth", "stderr", *METHODS)]
        print(f"{name:24} " + " ".join(f"{value:8.4f}" for value in shown), flush=True)
        output.write({"rows": rows})
    table = by_task(rows)
    answer = {"table": table, "scoreboard": scoreboard(table), "num_rows": args.num_rows}
    with output.saving({**answer, "rows": rows}):
        plot_benchmark(table, output.folder / "mi_benchmark.png")
    return answer


def settings_of(args: Arguments) -> MISettings:
    """What the flags ask for."""
    steps = ClassifierTraining.steps if args.iterations is None else args.iterations
    return MISettings(num_folds=args.num_folds, training=ClassifierTraining(steps=steps))


def read(args: Arguments) -> PairedData:
    """The user's columns.

    Raises:
        UserError: for flags that do not belong together, and as ``read_pair``.
    """
    if args.csv and (args.x or args.y):
        raise UserError("give either --csv or --x and --y, not both")
    if args.csv:
        return read_csv_pair(args.csv, args.x_columns, args.y_columns, MIN_ROWS)
    if not (args.x and args.y):
        raise UserError("give both --x and --y, two .npy files with as many rows")
    return read_pair(args.x, args.y, MIN_ROWS)


if __name__ == "__main__":
    sys.exit(run_script(main))
