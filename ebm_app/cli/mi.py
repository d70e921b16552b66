"""Estimate the mutual information of paired rows, or of the paper's Gaussians, in nats.

ebm mi --x a.npy --y b.npy
ebm mi --x table.csv --x_columns age height --y table.csv --y_columns weight
ebm mi --gaussian_dim 40
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import parse
from ebm_app.cli.ratio import save_estimate
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.registry import choose

#: For the Gaussians: test points, half of them drawn from p(x, y), and learning rate
NUM_POINTS, LEARNING_RATE = 10_000, 1e-3


@configuration(kw_only=True)
class PairFlags:
    """Flags of an estimate from paired rows."""

    x: str | None = setting(
        "rows of X: .npy, (N,) or (N, dx), .npz, or a table: .csv, .tsv, .parquet", None
    )
    y: str | None = setting("rows of Y, one for each row of X; may be the same table", None)
    x_columns: tuple[str, ...] = setting("columns of --x, or the array of an .npz file", ())
    y_columns: tuple[str, ...] = setting("columns of --y, or the array of an .npz file", ())
    iterations: Steps | None = setting(
        "max training steps of each network; 1,000 for rows and 2,000 to 10,000 for Gaussians if "
        "not given",
        None,
    )
    seed: Seed = setting("seed of folds, weights and batches", 0)
    output_dir: Path = setting("folder of the record and the plot", Path("runs/mi"))


@configuration(kw_only=True)
class Arguments(PairFlags):
    """Command-line arguments."""

    gaussian_dim: int | None = setting(
        "estimate the paper's Gaussians of this dimension by CTSM-v instead: 40, 80, 160 or 320",
        None,
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    if args.gaussian_dim is None:
        return estimate_rows(args)
    if args.x or args.y:
        raise UserError("Got both rows and --gaussian_dim. Give only one of them.")
    return estimate_gaussians(args)


def estimate_rows(args: PairFlags) -> dict[str, Any]:
    """Estimate the mutual information of the rows of two files, and write record and plot."""
    # imported after parsing, because they take seconds
    from ebm_app.ratios.information import InformationFit
    from ebm_app.ratios.rows import read_rows

    if not (args.x and args.y):
        raise UserError("Rows of one side are missing. Give both --x and --y.")
    output = Output(args.output_dir / "mi_data.json", args)
    x, y = read_rows(args.x, args.x_columns), read_rows(args.y, args.y_columns)
    fit = InformationFit(x, y, steps=args.iterations or 1_000, random_state=args.seed)
    return save_estimate(fit, output).figures()


def estimate_gaussians(args: Arguments) -> dict[str, Any]:
    """Learn the log ratio of one of the paper's problems of mutual information.

    Returns:
        ``value``, the mean log ratio over draws of p(x, y), the true value ``truth``, and
        ``matrix``, -1/2 log det of the learned covariance, in nats; ``error``, the mean squared
        error of the log ratio in nats^2.
    """
    from ebm_app.ratios.problems import INFORMATION_PROBLEMS, train_and_test

    dims = [name.removeprefix("mi_d") for name in INFORMATION_PROBLEMS]
    name = f"mi_d{choose('gaussian_dim', str(args.gaussian_dim), dims)}"
    problem, output = INFORMATION_PROBLEMS[name], Output(args.output_dir / f"{name}.json", args)
    if args.iterations:
        problem = problem.shorten(args.iterations)
    settings = args.seed, LEARNING_RATE, NUM_POINTS, "cpu"
    metrics = train_and_test(problem, "ctsm_v_time1", *settings)["test"]
    value, truth = metrics.pop("divergence"), problem.kl_divergence
    figures = {"value": value, "truth": truth, **metrics}
    output.save(figures)
    print(f"mutual information: {value} nats, true value {truth} nats")
    return figures
