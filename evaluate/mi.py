"""Mutual information: the paper's high-dimensional Gaussians, or your own data.

python evaluate/mi.py --quick
python evaluate/mi.py --x a.npy --y b.npy
python evaluate/mi.py --x table.csv --x_columns age height --y table.csv --y_columns weight
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import parse, run_script
from ebm_app.ratios.problems import INFORMATION_PROBLEMS
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output
from studies.ratio_tables import StudyFlags, run_study

QUICK = {
    "problems": ("mi_d40", "mi_d80"),
    "iterations": 1_500,
    "learning_rates": (5e-3,),
    "num_seeds": 2,
}


@configuration(kw_only=True)
class Arguments(StudyFlags):
    """The command line: of a study, or of your own data."""

    x: str | None = setting("your own data: .npy, (N,) or (N, dx), or .csv with a header", None)
    y: str | None = setting("your own data: as many rows, in the same or another file", None)
    x_columns: tuple[str, ...] = setting("columns to read from a .csv file of --x", ())
    y_columns: tuple[str, ...] = setting("columns to read from a .csv file of --y", ())
    output_dir: Path = setting("where runs and table go; it is resumed", Path("runs/mi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The estimate from the user's data, or a table; its metrics."""
    args = parse(Arguments, __doc__, argv)
    if args.x or args.y or args.x_columns or args.y_columns:
        return estimate(args)
    return run_study(args, INFORMATION_PROBLEMS, QUICK, "mi")


def estimate(args: Arguments) -> dict[str, Any]:
    """Mutual information of the user's data, in nats."""
    # seconds to import: --help does without
    from ebm_app.tabular.columns import read_rows
    from ebm_app.tabular.mutual_information import Estimation

    if not (args.x and args.y):
        raise UserError("give either --x and --y, files with as many rows, or none of them")
    x, y = read_rows(args.x, args.x_columns), read_rows(args.y, args.y_columns)
    output = Output(args.output_dir / "mi_data.json", args)
    steps = {} if args.iterations is None else {"steps": args.iterations}
    estimation = Estimation(x, y, random_state=args.seed, **steps)
    with tqdm(total=estimation.steps, unit="step", leave=False) as bar:
        for step, bound in estimation.run():
            bar.update(step - bar.n)
            bar.set_postfix_str(f"at least {bound:.3f} nats so far")
    found = estimation.result()
    answer = found.figures()
    output.save(answer)
    save_figure(found.plot(), output.folder / "mi_data.png")
    print(found.summary())
    return answer


if __name__ == "__main__":
    sys.exit(run_script(main))
