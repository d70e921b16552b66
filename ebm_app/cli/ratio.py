"""Estimate the log density ratio and the KL divergence of two samples, in nats.

ebm ratio --x0 a.npy --x1 b.npy
ebm ratio --x0 a.npy --x1 b.npy --at c.npy --method classifier
ebm ratio --x0 last_year.csv --x1 this_year.csv --columns age income
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tqdm.auto import tqdm

from ebm_app.cli.command_line import argument, parse
from ebm_app.utils.fields import Seed, Steps, configuration, setting
from ebm_app.utils.files import replace_file, save_figure
from ebm_app.utils.output import Output

if TYPE_CHECKING:
    from ebm_app.ratios.cross_fit import CrossFit, Estimate


@configuration(kw_only=True)
class Arguments:
    x0: str = argument("file with samples of p_0: .npy, .npz, .csv, .tsv, .txt or .parquet")
    x1: str = argument("file with samples of p_1, with the same columns")
    at: str | None = setting("file with points at which log p_1 / p_0 is written to at.csv", None)
    method: Literal["ctsm_v", "ctsm", "classifier"] = setting(
        "ctsm_v or ctsm: integral of a learned time score; classifier: faster, for overlapping "
        "samples",
        "ctsm_v",
    )
    columns: tuple[str, ...] = setting(
        "columns of the files, or name of the array of .npz files; if not given, all columns", ()
    )
    num_folds: int = setting("number of cross-fitting folds, each with its own network", 5)
    iterations: Steps = setting("max training steps of each network", 1_200)
    output_dir: Path = setting("folder for the record, plot and tables", Path("runs/ratio"))
    seed: Seed = setting("seed of folds, weights and batches", 0)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate the ratio; write the log ratio of each row to tables and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    # slow to import, and not needed for --help
    import pandas as pd

    from ebm_app.ratios.classifier import classify
    from ebm_app.ratios.ctsm import train
    from ebm_app.ratios.rows import read_rows
    from ebm_app.ratios.two_samples import RatioFit

    x0, x1 = (read_rows(path, args.columns) for path in (args.x0, args.x1))
    at = None if args.at is None else read_rows(args.at, args.columns)
    if args.method == "classifier":
        learn = partial(classify, num_steps=args.iterations)
    else:
        learn = partial(train, num_steps=args.iterations, objective=args.method)
    output = Output(args.output_dir / "ratio.json", args)
    fit = RatioFit(x0, x1, learn, args.num_folds, args.seed)
    estimate = save_estimate(fit, output, method=args.method)
    tables = {"x0": estimate.log_ratio0, "x1": estimate.log_ratio1}
    if at is not None:
        tables["at"] = estimate.log_ratio(at)
    for name, values in tables.items():
        table = pd.DataFrame({"log_ratio": values.numpy()})
        text = table.to_csv(index=False, float_format="%.10g")
        replace_file(output.folder / f"{name}.csv", text.encode())
    return {**estimate.figures(), "method": args.method}


def save_estimate(fit: "CrossFit", output: Output, **settings: str) -> "Estimate":
    """Train all folds, write the metrics, ``settings`` and plot, and print the summary."""
    for _ in tqdm(fit.run(), total=fit.num_folds, unit="fold", leave=False):
        pass
    estimate = fit.result()
    output.save({**estimate.figures(), **settings})
    save_figure(estimate.plot(), output.path.with_suffix(".png"))
    print(estimate.summary())
    return estimate
