"""Mutual information: the paper's high-dimensional Gaussians, or your own data.

python evaluate/mi.py --quick
torchrun --standalone --nproc_per_node 2 evaluate/mi.py    (every cell, on two processes)
python evaluate/mi.py --x a.npy --y b.npy
python evaluate/mi.py --csv table.csv --x_columns age height --y_columns weight
python evaluate/mi.py --benchmark normal_1x1 spiral_3x3
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from tqdm.auto import tqdm

from ebm_app.io.cli import Parser, flag
from ebm_app.io.errors import UserError
from ebm_app.io.output import Output
from ebm_app.io.registry import choose
from ebm_app.ratios.mi_tasks import BMI_TASKS, MI_TASKS
from ebm_app.ratios.problems import INFORMATION_PROBLEMS
from ebm_app.tabular.classifier import ClassifierTraining
from ebm_app.tabular.columns import PairedData, read_csv_pair, read_pair
from ebm_app.tabular.mutual_information import Estimation, MISettings
from studies.mi_benchmark import METHODS, benchmark_row, by_task, plot_benchmark, scoreboard
from studies.ratio_tables import (
    StudyBudget,
    add_study_flags,
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


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add_study_flags(parser, "runs/mi")
    own = parser.add_argument_group("your own data")
    own.add_argument("--x", help="an .npy file, (N,) or (N, dx)")
    own.add_argument("--y", help="an .npy file, (N,) or (N, dy)")
    own.add_argument("--csv", help="a CSV file with a header, in place of --x and --y")
    own.add_argument("--x_columns", nargs="+", default=[], help="columns of the CSV that are X")
    own.add_argument("--y_columns", nargs="+", default=[], help="columns of the CSV that are Y")
    known = parser.add_argument_group("data of known mutual information (arXiv:2306.11078)")
    known.add_argument(
        "--benchmark", nargs="+", default=[], help="tasks, such as normal_1x1; all for the forty"
    )
    known.add_argument("--num_rows", type=flag(NumRows), default=10_000, help="rows drawn of each")
    estimate = parser.add_argument_group("estimate from data")
    estimate.add_argument(
        "--num_folds", type=flag(NumFolds), default=3, help="parts of the rows, each left out once"
    )
    args = parser.parse_args(argv)
    check(parser, args)
    return args


def check(parser: Parser, args: Namespace) -> None:
    """Raise a UserError for flags that do not belong together."""
    data = any((args.x, args.y, args.csv))
    if not args.csv:
        parser.refuse(COLUMNS, "are columns of a table: give --csv")
    if not args.benchmark:
        parser.refuse(["num_rows"], "is of the tasks of --benchmark: name some")
    if data or args.benchmark:
        parser.refuse(["device"], "is of the study: an estimate from data runs on the CPU")
    if data:
        vain = [*STUDY, "benchmark", "num_seeds"]
        parser.refuse(vain, "is of no use with data of your own: leave it out")
    elif args.benchmark:
        parser.refuse(STUDY, "is of the study, and --benchmark is none: leave it out")
    else:
        parser.refuse(ESTIMATE, "is of data: give --x and --y, --csv or --benchmark")


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """The estimate from the user's data, or a table; its metrics, on the main process."""
    args = parse_args(argv)
    if args.x or args.y or args.csv:
        return estimate(args)
    if args.benchmark:
        return benchmark(args)
    problems = args.problems or (QUICK_PROBLEMS if args.quick else [])
    cells = chosen_cells(problems, args.methods, list(INFORMATION_PROBLEMS))
    return run_study(args, cells, budget_of(args, QUICK), "mi", ["divergence", "matrix"])


def estimate(args: Namespace) -> dict[str, Any]:
    """Mutual information of the user's data, in nats."""
    x, y = read(args)
    output = Output(Path(args.output_dir) / "mi_data.json", vars(args))
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


def benchmark(args: Namespace) -> dict[str, Any]:
    """Estimates beside the truth, a row a task."""
    names = list(BMI_TASKS) if args.benchmark == ["all"] else args.benchmark
    tasks = [choose("task", name, MI_TASKS) for name in names]
    output = Output(Path(args.output_dir) / "mi_benchmark.json", vars(args))
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


def settings_of(args: Namespace) -> MISettings:
    """What the flags ask for."""
    steps = ClassifierTraining.steps if args.iterations is None else args.iterations
    return MISettings(num_folds=args.num_folds, training=ClassifierTraining(steps=steps))


def read(args: Namespace) -> PairedData:
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
