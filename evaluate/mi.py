"""Estimate mutual information in nats: of the paper's Gaussians, or of paired rows in files.

python evaluate/mi.py
python evaluate/mi.py --dim 320
python evaluate/mi.py --x a.npy --y b.npy
python evaluate/mi.py --x table.csv --x_columns age height --y table.csv --y_columns weight
python evaluate/mi.py --table

Without --x and --y, CTSM-v learns the known information of Gaussians in --dim dimensions. With
--table, --quick, --problems or --methods, the paper's table is made for these Gaussians, as by
``python evaluate/toy.py``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm.auto import tqdm

import toy
from ebm_app.command_line import parse, run_script
from ebm_app.ratios.information import mutual_information
from ebm_app.ratios.problems import INFORMATION_PROBLEMS, learn_information
from ebm_app.ratios.rows import read_rows
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.processes import resolve_device
from ratio import make_ratio, save_estimate

#: Defaults of the flags with --quick
QUICK = {**toy.QUICK, "problems": ("mi_d40", "mi_d80")}
#: Training steps of CTSM-v on the paper's Gaussians
ITERATIONS = 2_000


@configuration(kw_only=True)
class Arguments(toy.Arguments):
    dim: Literal[40, 80, 160, 320] = setting("dimension of the paper's Gaussians", 40)
    table: bool = setting("make the paper's table, which takes hours", False)
    x: str | None = setting("file of the rows of X: .npy, .csv, .tsv or .parquet", None)
    y: str | None = setting("file of the rows of Y, paired with X; may be the file of X", None)
    x_columns: tuple[str, ...] = setting("columns of --x, by default all", ())
    y_columns: tuple[str, ...] = setting("columns of --y, by default all", ())
    no_header: bool = setting("text tables have no header; columns are numbered from 0", False)
    method: Literal["auto", "classifier", "ctsm_v"] = setting(
        "for --x and --y. auto: a classifier, and ctsm_v if the information is too large for it",
        "auto",
    )
    output_dir: Path = setting("folder for the record and the plot or table", Path("runs/mi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate the information of rows in files or of the paper's Gaussians, or make the table;
    write the record and the plot or table, and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    if args.x or args.y or args.x_columns or args.y_columns:
        return estimate_rows(args)

    if args.method != "auto":
        raise UserError("--method requires rows of X and of Y. Pass --x and --y.")
    if args.table or args.quick or args.problems or args.methods:
        if args.dim != Arguments.dim:
            raise UserError("--dim is not a flag of the table. Choose rows by --problems.")
        return toy.make_table(args, INFORMATION_PROBLEMS, QUICK, "mi")
    return learn(args)


def estimate_rows(args: Arguments) -> dict[str, Any]:
    """Estimate the information of the rows of two files."""
    if not (args.x and args.y):
        raise UserError("Expected rows of X and of Y. Pass both --x and --y.")
    of_table = args.quick, args.problems, args.methods, args.learning_rates, args.num_seeds
    if args.table or any(of_table) or args.dim != Arguments.dim:
        raise UserError(
            "--dim, --table and the flags of the table do not apply to rows. Leave them out, or "
            "leave out --x and --y."
        )

    output = Output(args.output_dir / "mi_data.json", args)
    header = None if args.no_header else 0
    x, y = read_rows(args.x, args.x_columns, header), read_rows(args.y, args.y_columns, header)
    ratio = None
    if args.method != "auto":
        ratio = make_ratio(args.method, args.iterations, args.seed)
    elif args.iterations is not None:
        raise UserError("--iterations needs a --method other than auto.")
    return save_estimate(mutual_information(x, y, ratio, args.seed), output)


def learn(args: Arguments) -> dict[str, Any]:
    """Learn the information of the paper's Gaussians, with the truth beside the estimate."""
    if args.learning_rates or args.num_seeds:
        raise UserError("--learning_rates and --num_seeds are flags of the table. Pass --table.")
    output = Output(args.output_dir / "mi_paper.json", args)
    iterations, truth = args.iterations or ITERATIONS, args.dim / 4
    device = resolve_device(args.device)
    if device == "cpu":  # the matrices are too small for several threads
        torch.set_num_threads(1)
    curve = []
    with tqdm(total=iterations, unit="step") as progress:
        for state in learn_information(args.dim, iterations, args.seed, device):
            curve.append([state.step, state.value])
            progress.update(state.step - progress.n)
            progress.set_description(f"{state.value:.2f} nats, truth {truth:g}")
    print(
        f"D = {args.dim}: {state.value:.3f} ± {state.stderr:.3f} nats by CTSM-v after "
        f"{iterations} steps, truth {truth:g}"
    )
    figures = {"dim": args.dim, "value": state.value, "stderr": state.stderr, "truth": truth}
    figures["iterations"] = iterations
    output.save({**figures, "curve": curve})
    return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
