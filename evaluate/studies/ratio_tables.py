"""Tables of log-ratio estimators: problems by methods, each cell by the paper's protocol.

Of a cell every learning rate is tried with the first seed; the rate with the best validation error
is repeated with the other seeds. The result is the mean and standard deviation over the seeds of
the error on fresh test points (arXiv:2502.02300, appendix F).
"""

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from ebm_app.io.command_line import CommonFlags
from ebm_app.io.errors import NumericalError, UserError
from ebm_app.io.fields import Draws, Positive, PositiveInt, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import make_accelerator, resolve_device, shut_down
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.points import EvaluationPoints, as_numbers, matrix_metrics
from ebm_app.ratios.problems import PROBLEMS, Problem
from ebm_app.ratios.training import TEST, VALIDATION, RatioTrainer
from studies.grid import Figures, fill, to_markdown

#: (problem, method) -> the mean squared error of the log ratio, in nats^2, over three runs that
#: the paper reports (arXiv:2502.02300, appendices E and F)
with Path(__file__).with_name("reported.csv").open(encoding="utf-8", newline="") as _file:
    _rows = list(csv.DictReader(_file))
REPORTED = {(row["problem"], row["method"]): float(row["mean"]) for row in _rows}
#: (problem, method) of every cell of a table
TableCells = list[tuple[str, str]]
Row = dict[str, Any]


@dataclass(frozen=True)
class StudyBudget:
    """How much work a table is: ``num_seeds`` runs of the best learning rate, from ``first_seed``;
    ``num_points`` of validation and of test; and in place of each problem's own, if given,
    ``iterations`` and ``learning_rates``."""

    num_seeds: int = 3
    num_points: int = 10_000
    iterations: int | None = None
    learning_rates: tuple[float, ...] = ()
    first_seed: int = 0

    def of(self, name: str) -> Problem:
        """The problem with this budget."""
        problem = PROBLEMS[name]
        training, rates = problem.training, self.learning_rates or problem.learning_rates
        if self.iterations is not None:
            every = min(training.eval_every, self.iterations)
            training = replace(training, iterations=self.iterations, eval_every=every)
        return replace(problem, learning_rates=rates, training=training)


class TableRun(NamedTuple):
    """One training."""

    problem: str
    method: str
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its cell in the grid."""
        return f"{self.problem}/{self.method}/lr={self.learning_rate:g},seed={self.seed}"

    def settings(self, budget: StudyBudget) -> dict[str, Any]:
        """What its figures depend on."""
        training, num_points = asdict(budget.of(self.problem).training), budget.num_points
        return {**self._asdict(), "training": training, "num_points": num_points}

    def train(self, budget: StudyBudget, device: str) -> Figures:
        """Its errors: the least in validation, and of the weights there on test points."""
        problem = budget.of(self.problem)
        validation, test = (
            EvaluationPoints(problem.pair, budget.num_points, seeded(device, 0, stream))
            for stream in (VALIDATION, TEST)
        )
        method, settings = problem.methods[self.method], (self.seed, self.learning_rate)
        trainer = RatioTrainer(
            method, problem.pair, *settings, problem.training, validation.criterion, device
        )
        with suppress(NumericalError):  # diverged: the best weights before that are judged
            for _ in trainer.run():
                pass
        ratio = trainer.best_ratio()
        value, nfe = ratio.accurate_log_ratio(test.x)
        return {
            "validation_error": trainer.best_error,
            "best_step": trainer.best_step,
            "test": as_numbers(test.metrics(value) | matrix_metrics(ratio)),
            "nfe": nfe,
            "seconds": trainer.seconds,
        }


def train_cells(
    folder: Path, cells: TableCells, budget: StudyBudget, device: str = "cpu"
) -> list[Row]:
    """Train what is missing, shared among processes; the result of every cell."""
    accelerator = make_accelerator(device=device)

    def trained(runs: Sequence[TableRun]) -> list[Figures]:
        by_name = {run.name: run for run in runs}
        settings = {name: run.settings(budget) for name, run in by_name.items()}
        found = fill(
            folder, settings, lambda name, _: by_name[name].train(budget, device), accelerator
        )
        return [found[run.name] for run in runs]

    first = [
        [TableRun(*cell, rate, budget.first_seed) for rate in budget.of(cell[0]).learning_rates]
        for cell in cells
    ]
    tried = iter(trained([run for runs in first for run in runs]))
    best = []
    for runs in first:
        errors = {run: next(tried)["validation_error"] for run in runs}
        best.append(min(errors, key=errors.get))
    seeds = range(budget.first_seed, budget.first_seed + budget.num_seeds)
    repeated = iter(trained([run._replace(seed=seed) for run in best for seed in seeds]))
    return [result_of(run, [next(repeated) for _ in seeds], budget) for run in best]


def result_of(best: TableRun, records: Sequence[Figures], budget: StudyBudget) -> Row:
    """Means over the runs of a cell and their deviations, None where a run has diverged, and what
    the paper reports."""
    problem = budget.of(best.problem)
    row: Row = {"problem": best.problem, "method": best.method}
    for name in records[0]["test"]:
        values = [record["test"][name] for record in records]
        is_finite = None not in values
        row[name] = fmean(values) if is_finite else None
        row[f"{name}_deviation"] = stdev(values) if is_finite and len(values) > 1 else None
    return {
        **row,
        "paper_error": REPORTED.get((best.problem, best.method)),
        "divergence_truth": problem.kl_divergence,
        "learning_rate": best.learning_rate,
        "iterations": problem.training.iterations,
        "nfe": max(record["nfe"] for record in records),
    }


@configuration(kw_only=True)
class StudyFlags(CommonFlags):
    """The flags of a table."""

    problems: tuple[str, ...] = setting("all if not given", ())
    methods: tuple[str, ...] = setting("all if not given", ())
    iterations: PositiveInt | None = setting("steps of a run, if not the problem's own", None)
    learning_rates: tuple[Positive, ...] = setting("in place of the paper's grid", ())
    num_seeds: Draws | None = setting(
        f"runs of the best learning rate, if not {StudyBudget.num_seeds}, or 2 where quick", None
    )
    quick: bool = setting("a few cells on a small budget: about two minutes", False)
    output_dir: Path = setting("where runs and table go; it is resumed", Path("runs"))


def budget_of(args: StudyFlags, quick: StudyBudget) -> StudyBudget:
    """The budget that the flags ask for; a quick one keeps the flags that were given."""
    base = quick if args.quick else StudyBudget()
    return replace(
        base,
        iterations=base.iterations if args.iterations is None else args.iterations,
        learning_rates=args.learning_rates or base.learning_rates,
        num_seeds=args.num_seeds or base.num_seeds,
        first_seed=args.seed,
    )


def chosen_cells(
    problems: Sequence[str], methods: Sequence[str], all_problems: Sequence[str]
) -> TableCells:
    """The cells of these problems and methods that make sense; all, where none are named.

    Raises:
        UserError: for an unknown name, or where nothing is left.
    """
    known = {method for problem in all_problems for method in PROBLEMS[problem].methods}
    problems = [choose("problem", name, all_problems) for name in problems] or all_problems
    methods = [choose("method", name, known) for name in methods]
    cells = [
        (problem, method)
        for problem in dict.fromkeys(problems)
        for method in dict.fromkeys(methods or PROBLEMS[problem].methods)
        if method in PROBLEMS[problem].methods
    ]
    if not cells:
        raise UserError("these methods do not belong to these problems: name others, or none")
    return cells


def run_study(
    args: StudyFlags, cells: TableCells, budget: StudyBudget, name: str
) -> dict[str, Any] | None:
    """Run every cell, write ``name``.json and print the table, which is returned on the main
    process: errors are mean squares of the log ratio in nats^2, "divergence" its mean over p_1 and
    "matrix" -1/2 log det of a learned Sigma, both in nats."""
    folder, device = args.output_dir, resolve_device(args.device)
    accelerator = make_accelerator(device=device)
    output = Output(folder / f"{name}.json", to_dict(args), accelerator.is_main_process)
    if device == "cpu":  # the matrices are small: several threads would wait for each other
        torch.set_num_threads(1)
    answer = {"table": train_cells(folder / "runs", cells, budget, device)}
    if accelerator.is_main_process:
        output.save(answer)
        print(to_markdown(answer["table"]))
    shut_down(accelerator)
    return answer if accelerator.is_main_process else None
