"""Estimate the log density ratio and the KL divergence of two samples, in nats.

python evaluate/ratio.py --x0 a.npy --x1 b.npy
python evaluate/ratio.py --x0 a.npy --x1 b.npy --at c.npy --method classifier
python evaluate/ratio.py --x0 last_year.csv --x1 this_year.csv --columns age income
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ebm_app.command_line import argument, parse, run_script
from ebm_app.ratios import ClassifierRatio, CTSMRatio
from ebm_app.ratios.classifier import NetworkClassifier
from ebm_app.ratios.cross_fit import CrossFitRatio
from ebm_app.ratios.estimate import RatioEstimate
from ebm_app.ratios.rows import read_rows
from ebm_app.utils.fields import Seed, Steps, configuration, setting
from ebm_app.utils.files import replace_file, save_figure
from ebm_app.utils.output import Output


@configuration(kw_only=True)
class Arguments:
    x0: str = argument("file with samples of p_0: .npy, .csv, .tsv or .parquet")
    x1: str = argument("file with samples of p_1, with the same columns")
    at: str | None = setting("file with points at which log p_1 / p_0 is written to at.csv", None)
    method: Literal["ctsm_v", "classifier"] = setting(
        "ctsm_v: integral of a learned time score; classifier: faster, for overlapping samples "
        "and discrete columns",
        "ctsm_v",
    )
    columns: tuple[str, ...] = setting("columns of the files, by default all", ())
    no_header: bool = setting("text tables have no header; columns are numbered from 0", False)
    num_folds: int = setting("number of cross-fitting folds, each with its own network", 5)
    iterations: Steps | None = setting(
        "max training steps of each network: 400, or 1,000 for the classifier", None
    )
    output_dir: Path = setting("folder for the record, plot and tables", Path("runs/ratio"))
    seed: Seed = setting("seed of folds, weights and batches", 0)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate the ratio; write the log ratio of each row to tables and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    import pandas as pd

    read = partial(read_rows, columns=args.columns, header=None if args.no_header else 0)
    x0, x1 = map(read, (args.x0, args.x1))
    at = None if args.at is None else read(args.at)
    output = Output(args.output_dir / "ratio.json", args)
    ratio = make_ratio(args.method, args.iterations, args.seed, args.num_folds).fit(x0, x1)
    estimate = ratio.estimate_
    tables = {"x0": estimate.log_ratio0, "x1": estimate.log_ratio1}
    if at is not None:
        tables["at"] = ratio.log_ratio(at)
    for name, values in tables.items():
        text = pd.DataFrame({"log_ratio": values}).to_csv(index=False, float_format="%.10g")
        replace_file(output.folder / f"{name}.csv", text.encode())
    return save_estimate(estimate, output)


def make_ratio(
    method: str, iterations: int | None, seed: int, num_folds: int = 5
) -> CrossFitRatio:
    """Return the estimator of a ``--method`` with ``iterations`` training steps, if not None."""
    settings = {"num_folds": num_folds, "random_state": seed}
    steps = {} if iterations is None else {"steps": iterations}
    if method == "classifier":
        classifier = NetworkClassifier(random_state=seed, **steps)
        return ClassifierRatio(classifier, **settings)
    return CTSMRatio(**settings, **steps)


def save_estimate(estimate: RatioEstimate, output: Output) -> dict[str, Any]:
    """Write the record and the plot, print the summary, and return the figures."""
    output.save(estimate.figures())
    save_figure(estimate.plot(), output.path.with_suffix(".png"))
    print(estimate.summary())
    return estimate.figures()


if __name__ == "__main__":
    raise SystemExit(run_script(main))
