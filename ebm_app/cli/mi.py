"""Estimate the mutual information of paired rows, or of the paper's Gaussians, in nats.

ebm mi --x a.npy --y b.npy
ebm mi --x table.csv --x_columns age height --y table.csv --y_columns weight
ebm mi --gaussian_dim 40
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import parse
from ebm_app.cli.ratio import save_estimate
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, Steps, configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.registry import choose

#: Test points, half of them of p(x, y), and learning rate for the Gaussians
NUM_POINTS, LEARNING_RATE = 10_000, 1e-3


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

    gaussian_dim: int | None = setting(
        "instead of rows: 40, 80, 160 or 320, the dimension of the paper's Gaussians, by CTSM-v",
        None,
    )
    iterations: Steps | None = setting(
        "max training steps of each network, by default 1,000 for rows, 2,000 to 10,000 for "
        "Gaussians",
        None,
    )
    seed: Seed = setting("seed of folds, weights and batches", 0)
    output_dir: Path = setting("folder of the record and the plot", Path("runs/mi"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate and return the metrics."""
    args = parse(Arguments, __doc__, argv)
    if args.gaussian_dim is None:
        return estimate_rows(args, args.iterations, args.seed, args)
    if args.x or args.y:
        raise UserError("Got rows and --gaussian_dim. Remove one or the other.")
    return estimate_gaussians(args)


def estimate_rows(
    flags: PairFlags, iterations: int | None, seed: int, settings: Any
) -> dict[str, Any]:
    """Estimate the mutual information of the rows of two files, and write record and plot."""
    # imported after parsing, because they take seconds
    from ebm_app.ratios.information import InformationFit
    from ebm_app.ratios.rows import read_rows

    if not (flags.x and flags.y):
        raise UserError("Rows of one side are missing. Give both --x and --y.")
    output = Output(settings.output_dir / "mi_data.json", settings)
    x, y = read_rows(flags.x, flags.x_columns), read_rows(flags.y, flags.y_columns)
    fit = InformationFit(x, y, steps=iterations or 1_000, random_state=seed)
    return save_estimate(fit, output).figures()


def estimate_gaussians(args: Arguments) -> dict[str, Any]:
    """Learn the log ratio of one of the paper's problems of mutual information.

    Returns:
        ``value``, the mean of the log ratio over draws of p(x, y), the true value ``truth``, and
        ``matrix``, -1/2 log det of the learned covariance, in nats; ``error``, the mean squared
        error of the log ratio in nats^2.
    """
    from ebm_app.ratios.points import EvaluationPoints
    from ebm_app.ratios.problems import INFORMATION_PROBLEMS
    from ebm_app.ratios.training import TEST, VALIDATION, train
    from ebm_app.utils.random import make_generator

    dims = [name.removeprefix("mi_d") for name in INFORMATION_PROBLEMS]
    name = f"mi_d{choose('gaussian_dim', str(args.gaussian_dim), dims)}"
    problem, output = INFORMATION_PROBLEMS[name], Output(args.output_dir / f"{name}.json", args)
    training, method = problem.training, problem.methods["ctsm_v_time1"]
    if args.iterations:
        every = min(training.eval_every, args.iterations)
        training = replace(training, iterations=args.iterations, eval_every=every)
    validation, test = (
        EvaluationPoints(problem.pair, NUM_POINTS, make_generator("cpu", 0, stream))
        for stream in (VALIDATION, TEST)
    )
    steps = train(method, problem.pair, args.seed, LEARNING_RATE, training, validation)
    with tqdm(total=training.iterations, unit="step", leave=False) as bar:
        for evaluation in steps:
            bar.update(evaluation.step - bar.n)
    best = evaluation.best
    metrics = test.metrics(best.log_ratio(test.x))
    figures = {
        "value": metrics["divergence"],
        "truth": problem.kl_divergence,
        "matrix": best.model.net.mutual_information(),
        "error": metrics["error"],
        "iterations": training.iterations,
    }
    output.save(figures)
    print("mutual information: {value:.4f} nats, true value {truth:.4f} nats".format_map(figures))
    return figures
