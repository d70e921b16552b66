"""Mutual information: the paper's high-dimensional Gaussians, or your own data.

python evaluate/mi.py --quick
torchrun --standalone --nproc_per_node 2 evaluate/mi.py    (every cell, on two processes)
python evaluate/mi.py --x a.npy --y b.npy --preprocessing rank
python evaluate/mi.py --csv table.csv --x_columns age height --y_columns weight
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.data.columns import PREPROCESSING, Pair, read_csv_pair, read_pair
from ebm_app.errors import UserError
from ebm_app.mutual_information import MISettings, folds, summarise
from ebm_app.ratio_training import RatioTraining
from ebm_app.studies import Budget
from ebm_app.study_problems import INFORMATION_PROBLEMS
from ebm_app.study_runner import add_study_flags, budget_of, chosen_cells, run_study

QUICK_PROBLEMS = ["mi_d40", "mi_d80"]
QUICK = Budget(num_seeds=2, num_points=2_000, iterations=1_500, learning_rates=(5e-3,))
#: fewer leave too little to learn from and to judge by
MIN_ROWS = 100


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
    own.add_argument(
        "--preprocessing", choices=sorted(PREPROCESSING), default="none", help="of every column"
    )
    own.add_argument(
        "--num_folds", type=int, default=3, help="parts of the rows, each judged once"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """The estimate for the user's data, or the table; its figures, on the main process."""
    args = parse_args(argv)
    if args.x or args.y or args.csv:
        return estimate(args)
    problems = args.problems or (QUICK_PROBLEMS if args.quick else [])
    cells = chosen_cells(problems, args.methods, list(INFORMATION_PROBLEMS))
    return run_study(args, cells, budget_of(args, QUICK), "mi", ["divergence", "matrix"])


def estimate(args: Namespace) -> dict[str, Any]:
    """Mutual information of the user's data, in nats."""
    device = resolve_device(args.device)
    x, y = (torch.from_numpy(PREPROCESSING[args.preprocessing](part)) for part in read(args))
    record = RunRecord(Path(args.output_dir) / "mi_data.json", vars(args))
    if device == "cpu":
        torch.set_num_threads(1)
    seeds = 1 if args.quick else args.num_seeds
    settings = MISettings(num_folds=args.num_folds, num_seeds=seeds)
    if args.iterations is not None:
        training = RatioTraining(args.iterations, eval_every=max(1, args.iterations // 10))
        settings = replace(settings, training=training)
    results = folds(x.to(device), y.to(device), settings, args.seed)
    total = settings.num_folds * settings.num_seeds
    found = summarise(tqdm(results, total=total, unit="fold"), len(x), settings.num_seeds)
    print(f"mutual information {found.mutual_information:.4f} +- {found.stderr:.4f} nats")
    print(f"log of the mean ratio over pairs of different rows: {found.log_normaliser:+.3f} (0 in")
    print("the limit; far from it, the estimate is not to be believed)")
    answer = {**found._asdict(), "num_rows": len(x), "preprocessing": args.preprocessing}
    record.write(answer)
    return answer


def read(args: Namespace) -> Pair:
    """The user's columns.

    Raises:
        UserError: for flags that do not belong together, and as the readers say.
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
