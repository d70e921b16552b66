"""The log density ratio of two samples of your own, and at other points with an error.

python evaluate/ratio.py --x0 a.npy --x1 b.npy
python evaluate/ratio.py --x0 a.npy --x1 b.npy --at c.npy
python evaluate/ratio.py --x0 last_year.csv --x1 this_year.csv --columns age income
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import argument, parse, run_script
from ebm_app.tabular.columns import read_rows
from ebm_app.utils.fields import AtLeastTwo, Seed, Steps, configuration, setting
from ebm_app.utils.files import replace_file, save_figure
from ebm_app.utils.output import Output


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    x0: str = argument("rows of p_0: .npy, (N,) or (N, D), or .csv with a header")
    x1: str = argument("rows of p_1, with the same columns")
    at: str | None = setting("rows at which log p_1 / p_0 is asked for; they go to at.csv", None)
    columns: tuple[str, ...] = setting("columns to read from .csv files", ())
    num_folds: AtLeastTwo = setting("parts of the rows", 10)
    iterations: Steps = setting("steps of the classifiers at most", 2_000)
    output_dir: Path = setting("where the record goes", Path("runs/ratio"))
    seed: Seed = setting("seed of folds, weights and batches", 0)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate; the figures of the ratio."""
    args = parse(Arguments, __doc__, argv)
    # seconds to import: --help does without
    import pandas as pd

    from ebm_app.tabular.two_samples import RatioEstimation

    x0, x1 = (read_rows(path, args.columns) for path in (args.x0, args.x1))
    at = None if args.at is None else read_rows(args.at, args.columns)
    output = Output(args.output_dir / "ratio.json", args)
    estimation = RatioEstimation(x0, x1, args.num_folds, args.iterations, args.seed)
    with tqdm(total=args.iterations, unit="step", leave=False) as bar:
        for step in estimation.run():
            bar.update(step - bar.n)
    ratio = estimation.result()
    tables = {"x0": {"log_ratio": ratio.log_ratio0}, "x1": {"log_ratio": ratio.log_ratio1}}
    if at is not None:
        value, error = ratio.score_samples(at, return_std=True)
        tables["at"] = {"log_ratio": value, "stderr": error}
    figures = ratio.figures()
    output.save(figures)
    save_figure(ratio.plot(), output.folder / "ratio.png")
    for name, columns in tables.items():
        text = pd.DataFrame(columns).to_csv(index=False, float_format="%.10g")
        replace_file(output.folder / f"{name}.csv", text.encode())
    print(ratio.summary())
    return figures


if __name__ == "__main__":
    sys.exit(run_script(main))
