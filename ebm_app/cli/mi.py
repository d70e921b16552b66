"""Estimate the mutual information of paired rows in nats, or reproduce the paper's tables.

ebm mi --x a.npy --y b.npy
ebm mi --x table.csv --x_columns age height --y table.csv --y_columns weight
ebm mi --quick

Without --x and --y, the table of ``ebm toy`` is made for pairs of correlated Gaussians.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli import toy
from ebm_app.cli.command_line import parse
from ebm_app.cli.ratio import save_estimate
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.output import Output

#: Defaults of the flags with --quick
QUICK = {**toy.QUICK, "problems": ("mi_d40", "mi_d80")}


@configuration(kw_only=True)
class Arguments(toy.Arguments):
    x: str | None = setting("file of the rows of X: .npy, .npz, .csv, .tsv, .txt, .parquet", None)
    y: str | None = setting("file of the rows of Y, paired with X; may be the file of X", None)
    x_columns: tuple[str, ...] = setting(
        "columns of --x, or name of the array of an .npz file; if not given, all columns", ()
    )
    y_columns: tuple[str, ...] = setting(
        "columns of --y, or name of the array of an .npz file; if not given, all columns", ()
    )
    output_dir: Path = setting("folder for the record and the plot or table", Path("runs/mi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate the information of the rows of two files, or of the paper's problems; write the
    record and the plot or table, and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    has_rows = args.x or args.y or args.x_columns or args.y_columns
    if has_rows and not (args.x and args.y):
        raise UserError("Expected rows of X and of Y. Pass both --x and --y.")
    # slow to import, and not needed for --help
    from ebm_app.ratios.information import InformationFit
    from ebm_app.ratios.problems import INFORMATION_PROBLEMS
    from ebm_app.ratios.rows import read_rows

    if not has_rows:
        return toy.make_table(args, INFORMATION_PROBLEMS, QUICK, "mi")
    output = Output(args.output_dir / "mi_data.json", args)
    x, y = read_rows(args.x, args.x_columns), read_rows(args.y, args.y_columns)
    fit = InformationFit(x, y, steps=args.iterations or 1_000, random_state=args.seed)
    return save_estimate(fit, output).figures()
