"""Estimate the mutual information of paired rows, in nats.

ebm mi --x a.npy --y b.npy
ebm mi --x table.csv --x_columns age height --y table.csv --y_columns weight
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import parse
from ebm_app.cli.ratio import save_estimate
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, configuration, setting
from ebm_app.utils.output import Output


@configuration(kw_only=True)
class Arguments:
    x: str | None = setting("file of the rows of X: .npy, .npz, .csv, .tsv, .txt, .parquet", None)
    y: str | None = setting("file of the rows of Y, paired with X; may be the file of X", None)
    x_columns: tuple[str, ...] = setting(
        "columns of --x, or name of the array of an .npz file; if not given, all columns", ()
    )
    y_columns: tuple[str, ...] = setting(
        "columns of --y, or name of the array of an .npz file; if not given, all columns", ()
    )
    iterations: Steps | None = setting("max steps of each network; if not given, 1,000", None)
    seed: Seed = setting("seed of folds, weights and batches", 0)
    output_dir: Path = setting("folder for the record and the plot", Path("runs/mi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate the mutual information; return the metrics."""
    return estimate_rows(parse(Arguments, __doc__, argv))


def estimate_rows(args: Arguments) -> dict[str, Any]:
    """Estimate the mutual information of the rows of two files; write the record and plot."""
    # slow to import, and not needed for --help
    from ebm_app.ratios.information import InformationFit
    from ebm_app.ratios.rows import read_rows

    if not (args.x and args.y):
        raise UserError("Expected rows of X and of Y. Pass both --x and --y.")
    output = Output(args.output_dir / "mi_data.json", args)
    x, y = read_rows(args.x, args.x_columns), read_rows(args.y, args.y_columns)
    fit = InformationFit(x, y, steps=args.iterations or 1_000, random_state=args.seed)
    return save_estimate(fit, output).figures()
