"""Tables of log-ratio estimators: problems by methods, each cell by the paper's protocol.

Of a cell every learning rate is tried with the first seed; the rate with the best validation error
is repeated with the other seeds. The result is the mean and standard deviation over the seeds of
the error on fresh test points (arXiv:2502.02300, appendix F).
"""

import csv
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags
from ebm_app.ratios.gaussian_net import GaussianNet
from ebm_app.ratios.points import EvaluationPoints
from ebm_app.ratios.problems import Problem
from ebm_app.ratios.training import TEST, VALIDATION, train
from ebm_app.utils.errors import NumericalError, UserError
from ebm_app.utils.fields import (
    Draws,
    Positive,
    PositiveInt,
    configuration,
    finite_or_none,
    setting,
)
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose
from studies.grid import Figures, once

#: points of validation and of test
NUM_POINTS, QUICK_POINTS = 10_000, 2_000
#: (problem, method) -> the mean squared error of the log ratio, in nats^2, over three runs that
#: the paper reports (arXiv:2502.02300, appendices E and F)
with Path(__file__).with_name("reported.csv").open(encoding="utf-8", newline="") as _file:
    _rows = list(csv.DictReader(_file))
REPORTED = {(row["problem"], row["method"]): float(row["mean"]) for row in _rows}


@configuration(kw_only=True)
class StudyFlags(CommonFlags):
    """The flags of a table."""

    problems: tuple[str, ...] = setting("all if not given", ())
    methods: tuple[str, ...] = setting("all if not given", ())
    iterations: PositiveInt | None = setting("steps of a run, if not the problem's own", None)
    learning_rates: tuple[Positive, ...] = setting("in place of the paper's grid", ())
    num_seeds: Draws | None = setting(
        "runs of the best learning rate, if not 3, or 2 where quick", None
    )
    quick: bool = setting("a few cells on a small budget: about two minutes", False)
    output_dir: Path = setting("where runs and table go; it is resumed", Path("runs"))


def run_study(
    args: StudyFlags, problems: Mapping[str, Problem], quick: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Run every cell, write ``name``.json and print the table, which is returned: errors are mean
    squares of the log ratio in nats^2, "divergence" its mean over p_1 and "matrix" -1/2 log det of
    a learned Sigma, both in nats.

    Args:
        problems: those that the flags choose from. quick: flags of a quick table, where not given.

    Raises:
        UserError: for an unknown name, or where no cell is left.
    """
    if args.quick:
        args = replace(args, **{key: getattr(args, key) or quick[key] for key in quick})
    chosen = [choose("problem", key, problems) for key in args.problems] or list(problems)
    known = {method for problem in problems.values() for method in problem.methods}
    methods = [choose("method", key, known) for key in args.methods] or known
    cells = [(key, row) for key in chosen for row in problems[key].methods if row in methods]
    if not cells:
        raise UserError("these methods do not belong to these problems: name others, or none")
    device = resolve_device(args.device)
    if device == "cpu":  # the matrices are small: several threads would wait for each other
        torch.set_num_threads(1)
    output = Output(args.output_dir / f"{name}.json", args)
    table = []
    for cell in tqdm(cells, unit="cell"):
        table.append(row_of(*cell, problems[cell[0]], args, device))
        output.write({"table": table})
    answer = {"table": table}
    output.save(answer)
    print(to_markdown(table))
    return answer


def row_of(
    name: str, method: str, problem: Problem, args: StudyFlags, device: str
) -> dict[str, Any]:
    """Of a cell the means over its runs and their deviations, None where a run has diverged, and
    what the paper reports."""
    num_points, training = QUICK_POINTS if args.quick else NUM_POINTS, problem.training
    if args.iterations is not None:
        every = min(training.eval_every, args.iterations)
        training = replace(training, iterations=args.iterations, eval_every=every)
    problem = replace(problem, training=training)

    def trained(rate: float, seed: int) -> Figures:
        settings = {"problem": name, "method": method, "learning_rate": rate, "seed": seed}
        settings |= {"training": asdict(training), "num_points": num_points}
        folder = args.output_dir / "runs" / name / method / f"lr={rate:g},seed={seed}"
        work = partial(run_of, problem, method, seed, rate, num_points, device)
        return once(folder, settings, work)

    errors = {
        rate: trained(rate, args.seed)["validation_error"]
        for rate in args.learning_rates or problem.learning_rates
    }
    best = min(errors, key=errors.get)
    records = [trained(best, args.seed + number) for number in range(args.num_seeds or 3)]
    found: dict[str, Any] = {"problem": name, "method": method}
    for key in records[0]["test"]:
        values = [record["test"][key] for record in records]
        is_finite = None not in values
        found[key] = fmean(values) if is_finite else None
        found[f"{key}_deviation"] = stdev(values) if is_finite and len(values) > 1 else None
    return {
        **found,
        "paper_error": REPORTED.get((name, method)),
        "divergence_truth": problem.kl_divergence,
        "learning_rate": best,
        "iterations": training.iterations,
        "nfe": max(record["nfe"] for record in records),
    }


def run_of(
    problem: Problem, method: str, seed: int, rate: float, num_points: int, device: str
) -> Figures:
    """The errors of a run: the least in validation, and of the weights there on test points."""
    validation, test = (
        EvaluationPoints(problem.pair, num_points, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )
    settings = seed, rate, problem.training, validation.judge, device
    with suppress(NumericalError):  # diverged: the best weights before that are judged
        for at in train(problem.methods[method], problem.pair, *settings):
            last = at
    value, nfe = last.best.accurate_log_ratio(test.x)
    metrics, net = test.metrics(value), last.best.model.net
    if isinstance(net, GaussianNet):
        metrics["matrix"] = net.mutual_information()
    return {
        "validation_error": last.best_error,
        "test": finite_or_none(metrics),
        "nfe": nfe,
    }
