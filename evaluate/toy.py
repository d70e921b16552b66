"""Reproduce the paper's tables of log ratios of distant densities.

python evaluate/toy.py --quick
python evaluate/toy.py --problems gaussians_d10 --methods ctsm_v_time1 tsm_stein

Each cell follows the paper's protocol: train every learning rate with the first seed, select the
rate with the smallest validation error, and repeat it with the other seeds. The table has the mean
and standard deviation over seeds of the error on new test points (arXiv:2502.02300, appendix F),
next to the paper's error. It also has the squared error of the divergence, "kl_squared", and both
terms of its bound by Theorem 4, "discretisation" and "estimation", in nats^2.

Every finished run is appended to the JSON Lines file --runs and is not repeated, so that an
interrupted table can be continued by the same command.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.command_line import CommonFlags, parse, run_script
from ebm_app.ratios.error_bound import discretisation_term
from ebm_app.ratios.problems import (
    REPORTED,
    TEST,
    TOY_PROBLEMS,
    EvaluationPoints,
    Problem,
    train_and_test,
)
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Draws, Positive, PositiveInt, configuration, setting
from ebm_app.utils.files import replace_file
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

Metrics = dict[str, Any]
#: Factor of the paper's error above which a row is marked as not converged
FAR = 10
#: Number of validation and test points, by default and with --quick
NUM_POINTS, QUICK_POINTS = 10_000, 2_000
#: Number of points of the discretisation term of the error bound
NUM_BOUND = 300
#: Defaults of the flags with --quick, for a run of a minute or two on one core
QUICK = {"iterations": 1_500, "learning_rates": (5e-3,), "num_seeds": 2}
QUICK_TOY = {**QUICK, "problems": ("gaussians_d2",), "methods": ("ctsm_v_time1",)}


@configuration(kw_only=True)
class Arguments(CommonFlags):
    problems: tuple[str, ...] = setting("problems, by default all", ())
    methods: tuple[str, ...] = setting("methods, by default all", ())
    iterations: PositiveInt | None = setting("training steps, by default the problem's own", None)
    learning_rates: tuple[Positive, ...] = setting("learning rates, by default the paper's", ())
    num_seeds: Draws | None = setting("runs of the best learning rate: 3, or 2 with --quick", None)
    quick: bool = setting("run the smallest problems with few steps, in a minute or two", False)
    num_processes: PositiveInt = setting("number of rows computed at the same time", 1)
    runs: Path | None = setting("file of finished runs, by default runs.jsonl in the folder", None)
    output_dir: Path = setting("folder of the table", Path("runs/toy"))


def main(argv: Sequence[str] | None = None) -> Metrics:
    """Compare methods on the toy problems; return the table."""
    args = parse(Arguments, __doc__, argv)

    return make_table(args, TOY_PROBLEMS, QUICK_TOY, "toy")


def make_table(
    args: Arguments, problems: Mapping[str, Problem], quick: Mapping[str, Any], name: str
) -> Metrics:
    """Run every cell, write ``name``.json, and print and return the table.

    Errors are mean squared errors of the log ratio in nats^2; "divergence" is its mean over p_1
    and "matrix" is -1/2 log det of a learned Sigma, both in nats. "ms" is processor time.

    Args:
        problems: the problems to choose from.
        quick: defaults of the flags with --quick.

    Raises:
        UserError: for an unknown name, or if no method belongs to a problem.
    """
    if args.quick:
        args = replace(args, **{key: getattr(args, key) or quick[key] for key in quick})
    names = [choose("problem", key, problems) for key in args.problems] or list(problems)
    available = {method for problem in problems.values() for method in problem.methods}
    methods = [choose("method", key, available) for key in args.methods] or available
    cells = [(key, row) for key in names for row in problems[key].methods if row in methods]
    if not cells:
        raise UserError("These methods do not belong to these problems. Omit --methods.")
    output = Output(args.output_dir / f"{name}.json", args)
    args = replace(args, runs=args.runs or output.folder / "runs.jsonl")
    drop_incomplete_line(args.runs)
    jobs = [(args, *cell, problems[cell[0]]) for cell in cells]
    table = []
    for row in tqdm(run_jobs(jobs, args.num_processes), total=len(jobs), unit="cell"):
        table.append(row)
        output.write({"table": table})
    output.save({"table": table})
    print(to_markdown(table))
    return {"table": table}


def run_jobs(jobs: list[tuple[Any, ...]], num_processes: int) -> Iterator[dict[str, Any]]:
    """Yield ``make_row(*job)`` of each job in order, computed by a number of processes."""
    if num_processes == 1:
        yield from (make_row(*job) for job in jobs)
        return
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(make_row, *zip(*jobs, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)


def make_row(args: Arguments, name: str, method: str, problem: Problem) -> dict[str, Any]:
    """Return the means and standard deviations over the runs of a cell (None if a run diverged),
    the error and time reported by the paper, and a note if the error is ``FAR`` times as large."""
    device = resolve_device(args.device)
    if device == "cpu":  # the matrices are too small for several threads
        torch.set_num_threads(1)
    num_points = QUICK_POINTS if args.quick else NUM_POINTS
    if args.iterations is not None:
        problem = problem.shorten(args.iterations)
    finished = read_runs(args.runs)

    def run(rate: float, seed: int) -> Metrics:
        key = name, method, problem.iterations, num_points, rate, seed
        if key not in finished:
            record = train_and_test(problem, method, seed, rate, num_points, device)
            append_run(args.runs, key, record)
            return record
        return finished[key]

    seeds = range(args.seed, args.seed + (args.num_seeds or 3))
    best, records = select_rate(run, args.learning_rates or problem.learning_rates, seeds)
    row: dict[str, Any] = {"problem": name, "method": method}
    for key in records[0]["test"]:
        values = [record["test"][key] for record in records]
        is_finite = None not in values
        row[key] = fmean(values) if is_finite else None
        row[f"{key}_deviation"] = stdev(values) if is_finite and len(values) > 1 else None
    if "time_score_error" in row:
        row |= error_bound(problem, method, records, num_points)
    times = [record["ms"] for record in records if record["ms"] is not None]
    reported = REPORTED.get((name, method))
    error, paper = row.get("error"), None if reported is None else reported.mean
    is_far = error is None or (paper is not None and error > FAR * paper)
    return {
        **row,
        "ms": min(times, default=None),
        "paper_error": paper,
        "paper_deviation": None if reported is None else reported.deviation,
        "paper_ms": None if reported is None else reported.ms,
        "note": "not converged" if is_far else None,
        "divergence_truth": problem.kl_divergence,
        "learning_rate": best,
        "iterations": problem.iterations,
    }


def select_rate(
    run: Callable[[float, int], Metrics], rates: Sequence[float], seeds: Sequence[int]
) -> tuple[float, list[Metrics]]:
    """Return the learning rate with the smallest validation error for the first seed, and the
    runs of all seeds with this rate.

    Args:
        run: (learning rate, seed) -> metrics with "validation_error".
    """
    first = {rate: run(rate, seeds[0]) for rate in rates}
    best = min(first, key=lambda rate: first[rate]["validation_error"])
    return best, [first[best], *(run(best, seed) for seed in seeds[1:])]


def error_bound(
    problem: Problem, method: str, records: Sequence[Metrics], num_points: int
) -> dict[str, float | None]:
    """Return the mean squared error of KL(p_1 || p_0) over runs, and the terms of its bound."""
    points = EvaluationPoints(problem.pair, num_points, make_generator("cpu", 0, TEST))
    truth = points.metrics(points.truth)["divergence"]
    values = [record["test"]["divergence"] for record in records]
    errors = [record["test"]["time_score_error"] for record in records]
    path, x = problem.methods[method].path, points.x1[:NUM_BOUND]
    return {
        "kl_squared": None if None in values else fmean((kl - truth) ** 2 for kl in values),
        "discretisation": discretisation_term(problem.pair, path, x),
        "estimation": None if None in errors else 2 * fmean(errors),
    }


#: Settings that identify a run
KEYS = "problem", "method", "iterations", "num_points", "learning_rate", "seed"


def read_runs(path: Path) -> dict[tuple[Any, ...], Metrics]:
    """Return the finished runs in a JSON Lines file by the values of ``KEYS``."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {tuple(record[key] for key in KEYS): record for record in records}


def append_run(path: Path, key: tuple[Any, ...], record: Metrics) -> None:
    """Append a finished run as one line, in one write, so that processes can share the file."""
    line = json.dumps(dict(zip(KEYS, key, strict=True)) | record) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def drop_incomplete_line(path: Path) -> None:
    """Remove the last line of a file if it has no line break, as after a crash."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        replace_file(path, content[: content.rfind(b"\n") + 1])


if __name__ == "__main__":
    raise SystemExit(run_script(main))
