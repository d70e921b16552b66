"""Tables of log-ratio estimators: problems by methods, each cell by the paper's protocol.

A cell trains one run for every learning rate on the first seed, keeps the rate with the best
validation error, and trains the other seeds with it; its result is the mean and standard deviation
over the seeds of the error on fresh test points (arXiv:2502.02300, appendix F). Every run is a
file, so that a table goes on where it was stopped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ebm_app.io.errors import UserError
from ebm_app.io.records import read_record, write_json
from ebm_app.io.study_schemas import TrialRecord
from ebm_app.io.writing import explained_write
from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.points import EvaluationPoints, as_numbers, matrix_metrics
from ebm_app.ratios.problems import PROBLEMS, Problem
from ebm_app.ratios.training import TEST, VALIDATION, RatioTrainer


@dataclass(frozen=True)
class StudyBudget:
    """How much work a table is.

    Args:
        num_seeds: runs of the best learning rate, the first of them from the grid.
        num_points: points of validation and of test.
        iterations, learning_rates: in place of each problem's own, if given.
        first_seed: of the seeds, which follow each other.

    Raises:
        UserError: for numbers that leave no run.
    """

    num_seeds: int = 3
    num_points: int = 10_000
    iterations: int | None = None
    learning_rates: tuple[float, ...] = ()
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.num_seeds < 1 or self.num_points < 2:
            raise UserError("a table needs at least 1 seed and 2 points")
        if self.first_seed < 0:
            raise UserError("the first seed must not be negative")
        if any(not rate > 0 for rate in self.learning_rates):
            raise UserError("learning rates must be positive")

    def of(self, problem: str) -> Problem:
        """The problem with this budget."""
        found = PROBLEMS[problem]
        training = found.training
        if self.iterations is not None:
            every = min(training.eval_every, self.iterations)
            training = replace(training, iterations=self.iterations, eval_every=every)
        rates = self.learning_rates or found.learning_rates
        return replace(found, learning_rates=rates, training=training)

    def num_runs(self, problem: str) -> int:
        """Runs of a cell: one for each learning rate, and the best one's other seeds."""
        return len(self.of(problem).learning_rates) + self.num_seeds - 1


@dataclass(frozen=True)
class StudyRun:
    """One training of a table."""

    problem: str
    method: str
    learning_rate: float
    seed: int

    def file(self, folder: Path) -> Path:
        """Where its record goes."""
        name = f"lr={self.learning_rate:g},seed={self.seed}.json"
        return folder / "runs" / self.problem / self.method / name


class Study:
    """Cells of one table, the records of their runs in ``folder``."""

    def __init__(self, folder: Path, budget: StudyBudget, device: str = "cpu") -> None:
        self.folder, self.budget, self.device = folder, budget, device

    def num_evaluations(self, problem: str) -> int:
        """Evaluations of a cell."""
        training = self.budget.of(problem).training
        return self.budget.num_runs(problem) * training.num_evaluations

    def cell(self, problem: str, method: str) -> Iterator[int]:
        """Run what is missing of a cell; yields the number of further evaluations done."""
        grid = self._grid(problem, method)
        yield from self._complete(grid)
        yield from self._complete(self._seeds(self._best(grid))[1:])

    def metrics(self, problem: str, method: str) -> dict[str, Any]:
        """The result of a finished cell.

        Raises:
            UserError: for a cell with a run missing.
        """
        best = self._best(self._grid(problem, method))
        records = [self._read(run) for run in self._seeds(best)]
        column = self.budget.of(problem)
        summary = {}
        for name in records[0]["test"]:
            values = [record["test"][name] for record in records]
            is_finite = None not in values
            summary[name] = fmean(values) if is_finite else None
            several = is_finite and len(values) > 1
            summary[f"{name}_deviation"] = stdev(values) if several else None
        return {
            "problem": problem,
            "method": method,
            **summary,
            "divergence_truth": column.kl_divergence,
            "learning_rate": best.learning_rate,
            "iterations": column.training.iterations,
            "best_steps": [record["best_step"] for record in records],
            "nfe": max(record["nfe"] for record in records),
            "quadrature_distance": max(record["quadrature_distance"] for record in records),
            "curves": [record["curve"] for record in records],
        }

    def _grid(self, problem: str, method: str) -> list[StudyRun]:
        rates, seed = self.budget.of(problem).learning_rates, self.budget.first_seed
        return [StudyRun(problem, method, rate, seed) for rate in rates]

    def _seeds(self, best: StudyRun) -> list[StudyRun]:
        return [replace(best, seed=best.seed + k) for k in range(self.budget.num_seeds)]

    def _best(self, grid: Sequence[StudyRun]) -> StudyRun:
        return min(grid, key=lambda run: self._read(run)["validation_error"])

    def _complete(self, runs: Sequence[StudyRun]) -> Iterator[int]:
        for run in runs:
            if run.file(self.folder).exists():
                self._read(run)
                yield self.budget.of(run.problem).training.num_evaluations
            else:
                yield from self._train(run)

    def _train(self, run: StudyRun) -> Iterator[int]:
        column, num = self.budget.of(run.problem), self.budget.num_points
        validation = EvaluationPoints(column.pair, num, seeded(self.device, 0, VALIDATION))
        method, settings = column.methods[run.method], (run.seed, run.learning_rate)
        settings += (column.training, validation.criterion, self.device)
        trainer = RatioTrainer(method, column.pair, *settings)
        curve = []
        for evaluation in trainer.run():
            curve.append({"step": evaluation.step, **as_numbers(evaluation.metrics)})
            yield 1
        points = EvaluationPoints(column.pair, num, seeded(self.device, 0, TEST))
        ratio = trainer.best_ratio()
        fast, (accurate, nfe) = ratio.log_ratio(points.x), ratio.accurate_log_ratio(points.x)
        found = {
            "validation_error": trainer.best_error,
            "best_step": trainer.best_step,
            "test": as_numbers(points.metrics(accurate) | matrix_metrics(ratio)),
            "quadrature_distance": (accurate - fast).square().mean().item(),
            "nfe": nfe,
            "seconds": trainer.seconds,
            "curve": curve,
        }
        self._write(run, found)

    def _settings(self, run: StudyRun) -> dict[str, Any]:
        column = self.budget.of(run.problem)
        method = column.methods[run.method]
        return {
            **asdict(run),
            "settings": {"kind": type(method).__name__, **asdict(method)},
            "training": asdict(column.training),
            "num_points": self.budget.num_points,
        }

    def _write(self, run: StudyRun, found: dict[str, Any]) -> None:
        file = run.file(self.folder)
        with explained_write(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {**self._settings(run), "figures": found})

    def _read(self, run: StudyRun) -> dict[str, Any]:
        file = run.file(self.folder)
        record = read_record(TrialRecord, file)
        found = record.pop("figures")
        if record != self._settings(run):
            raise UserError(
                f"{file} holds a run of other settings: give the same ones or another --output_dir"
            )
        return found
