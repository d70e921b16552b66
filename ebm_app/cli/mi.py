"""Estimate the mutual information of paired rows, in nats.

ebm mi --x a.npy --y b.npy
ebm mi --x table.csv --x_columns age height --y table.csv --y_columns weight
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import parse
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output


@configuration(kw_only=True)
class PairFlags:
    """Flags of paired rows."""

    x: str | None = setting("rows of X: .npy, (N,) or (N, dx), or .csv with a header", None)
    y: str | None = setting("rows of Y, as many, in the same or another file", None)
    x_columns: tuple[str, ...] = setting("columns to read from a .csv file of --x", ())
    y_columns: tuple[str, ...] = setting("columns to read from a .csv file of --y", ())


@configuration(kw_only=True)
class Arguments(PairFlags):
    """The command line."""

    iterations: Steps = setting("max training steps of each network", 1_000)
    seed: Seed = setting("seed of folds, weights and batches", 0)
    output_dir: Path = setting("folder of the record and the plot", Path("runs/mi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    output = Output(args.output_dir / "mi_data.json", args)
    return estimate(args, args.iterations, args.seed, output)


def estimate(args: PairFlags, steps: int, seed: int, output: Output) -> dict[str, Any]:
    """Estimate the mutual information of the rows of two files, and write record and plot."""
    # imported after parsing, because they take seconds
    from ebm_app.ratios.information import InformationFit
    from ebm_app.ratios.rows import read_rows

    if not (args.x and args.y):
        raise UserError("Rows of one side are missing. Give both --x and --y.")
    x, y = read_rows(args.x, args.x_columns), read_rows(args.y, args.y_columns)
    estimation = InformationFit(x, y, steps=steps, random_state=seed)
    with tqdm(total=estimation.num_folds, unit="fold", leave=False) as bar:
        for _, bound in estimation.run():
            bar.update()
            bar.set_postfix_str(f"bound {bound:.3f} nats")
    result = estimation.result()
    output.save(result.figures())
    save_figure(result.plot(), output.folder / "mi_data.png")
    print(result.summary())
    return result.figures()
