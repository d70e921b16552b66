"""Mutual information: the paper's high-dimensional Gaussians, or your own data.

python evaluate/mi.py --quick
torchrun --standalone --nproc_per_node 2 evaluate/mi.py    (every cell, on two processes)
python evaluate/mi.py --x a.npy --y b.npy --preprocessing rank
python evaluate/mi.py --csv table.csv --x_columns age height --y_columns weight
python evaluate/mi.py --benchmark normal_1x1 student_2x2_df2 --preprocessing asinh
"""

from ebm_app.runs.start import run_script  # isort: skip  before what takes seconds

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from tqdm.auto import tqdm

from ebm_app.errors import UserError
from ebm_app.ratios.data.columns import PairedData, read_csv_pair, read_pair
from ebm_app.ratios.data.mi_tasks import MI_TASKS
from ebm_app.ratios.data.preprocessing import PREPROCESSING
from ebm_app.ratios.mutual_information import MIEstimate, MISettings, folds, summarise
from ebm_app.ratios.studies.problems import INFORMATION_PROBLEMS
from ebm_app.ratios.studies.runner import add_study_flags, budget_of, chosen_cells, run_study
from ebm_app.ratios.studies.study import StudyBudget
from ebm_app.ratios.training import RatioTraining
from ebm_app.registry import choose
from ebm_app.runs.cli import Parser, flag, resolve_device
from ebm_app.runs.output import Output

QUICK_PROBLEMS = ["mi_d40", "mi_d80"]
QUICK = StudyBudget(num_seeds=2, num_points=2_000, iterations=1_500, learning_rates=(5e-3,))
#: flags of the study, of an estimate from data, and of a table
STUDY, ESTIMATE = ("problems", "methods", "learning_rates"), ("preprocessing", "num_folds")
COLUMNS = ("x_columns", "y_columns")
#: with fewer rows there is too little to train and test on
MIN_ROWS = 100
NumRows = Annotated[int, Ge(MIN_ROWS), Le(1_000_000)]
#: a fold has rows of its own, however few there are
NumFolds = Annotated[int, Ge(2), Le(MIN_ROWS // 2)]


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
    known.add_argument("--benchmark", nargs="+", default=[], help="tasks, such as normal_1x1")
    known.add_argument("--num_rows", type=flag(NumRows), default=10_000, help="rows drawn of each")
    estimate = parser.add_argument_group("estimate from data")
    estimate.add_argument(
        "--preprocessing", choices=sorted(PREPROCESSING), default="none", help="of every column"
    )
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
    if data:
        parser.refuse([*STUDY, "benchmark"], "is of no use with data of your own: leave it out")
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
    found = cross_fitted(x, y, args)
    print(f"mutual information {found.mutual_information:.4f} +- {found.stderr:.4f} nats")
    print(f"log of the mean ratio over pairs of different rows: {found.log_normaliser:+.3f}")
    print("(0 for the exact ratio; do not trust the estimate if this is far from 0)")
    answer = {**found._asdict(), "num_rows": len(x), "preprocessing": args.preprocessing}
    output.save(answer)
    return answer


def benchmark(args: Namespace) -> dict[str, Any]:
    """Estimates beside the truth, a row a task."""
    tasks = [choose("task", name, MI_TASKS) for name in args.benchmark]
    output = Output(Path(args.output_dir) / "mi_benchmark.json", vars(args))
    table = []
    print(f"{'task':24} {'truth':>8} {'estimate':>8} {'s.e.':>8} {'log E':>8}")
    for name in tasks:
        task, generator = MI_TASKS[name], torch.Generator().manual_seed(args.seed)
        x, y = (part.double().numpy() for part in task.sample(args.num_rows, generator))
        found = cross_fitted(x, y, args)
        row = {"task": name, "truth": task.mutual_information, **found._asdict()}
        table.append(row)
        columns = (row["truth"], *found[:3])
        print(f"{name:24} " + " ".join(f"{value:8.4f}" for value in columns), flush=True)
    answer = {"table": table, "num_rows": args.num_rows, "preprocessing": args.preprocessing}
    output.save(answer)
    return answer


def cross_fitted(x: np.ndarray, y: np.ndarray, args: Namespace) -> MIEstimate:
    """The estimate of preprocessed columns, under a progress bar."""
    device = resolve_device(args.device)
    if device == "cpu":  # the matrices are small: several threads would wait for each other
        torch.set_num_threads(1)
    x, y = (torch.from_numpy(PREPROCESSING[args.preprocessing](part)) for part in (x, y))
    seeds = args.num_seeds or (1 if args.quick else StudyBudget.num_seeds)
    settings = MISettings(num_folds=args.num_folds, num_seeds=seeds)
    if args.iterations is not None:
        training = RatioTraining(args.iterations, eval_every=max(1, args.iterations // 10))
        settings = replace(settings, training=training)
    results = folds(x.to(device), y.to(device), settings, args.seed)
    bar = tqdm(results, total=settings.num_folds * settings.num_seeds, unit="fold", leave=False)
    return summarise(bar, len(x), settings.num_seeds)


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
