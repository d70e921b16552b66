"""Tables of log-ratio estimators: problems by methods, each cell by the paper's protocol.

A cell trains one run for every learning rate on the first seed, keeps the rate with the best
validation error, and trains the other seeds with it; its figure is the mean and standard deviation
over the seeds of the error on fresh test points (arXiv:2502.02300, appendix F). Every run is a
file, so that a table goes on where it was stopped.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.models.config import read_json, write_json
from ebm_app.numerics import seeded
from ebm_app.ratios.data.pairs import KnownPair
from ebm_app.ratios.gaussian_net import GaussianStack
from ebm_app.ratios.stacks import RatioStack
from ebm_app.ratios.studies.problems import PROBLEMS, Problem
from ebm_app.ratios.training import TEST, VALIDATION, RatioTrainer
from ebm_app.runs.files import explained_write


class Points:
    """Points of 1/2 p_0 + 1/2 p_1 at which log ratios are judged.

    Args:
        pair: the densities. num: points, half of either density. generator: of the draw.
    """

    def __init__(self, pair: KnownPair, num: int, generator: torch.Generator) -> None:
        self.half = num // 2
        parts = pair.sample0(num - self.half, generator), pair.sample1(self.half, generator)
        self.x = torch.cat(parts)
        self.truth = pair.log_ratio(self.x)

    def figures(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Of estimates (M, N): "error", their mean squared distance to the truth in nats^2, and
        "divergence", their mean over p_1, which estimates KL(p_1 || p_0) in nats."""
        return {
            "error": (log_ratio - self.truth).square().mean(1),
            "divergence": log_ratio[:, -self.half :].mean(1),
        }

    def criterion(self, ratio: RatioStack) -> dict[str, Tensor]:
        """The figures of the fast integral; of a matrix, "matrix" too: -1/2 log det Sigma."""
        return self.figures(ratio.log_ratio(self.x)) | of_matrix(ratio)


def of_matrix(ratio: RatioStack) -> dict[str, Tensor]:
    """ "matrix", -1/2 log det Sigma in nats, of estimators that learn a Sigma; else nothing."""
    if not isinstance(ratio.stack, GaussianStack):
        return {}
    return {"matrix": ratio.stack.mutual_information().detach()}


@dataclass(frozen=True)
class Run:
    """One training: a member of a stack."""

    problem: str
    method: str
    learning_rate: float
    seed: int

    def file(self, folder: Path) -> Path:
        """Where its record goes."""
        name = f"lr={self.learning_rate:g},seed={self.seed}.json"
        return folder / "runs" / self.problem / self.method / name


@dataclass(frozen=True)
class Budget:
    """What a table spends.

    Args:
        num_seeds: runs of the best learning rate, the first of them from the grid.
        num_points: points of validation and of test.
        members: runs trained side by side.
        iterations, learning_rates: in place of each problem's own, if given.
        first_seed: of the seeds, which follow each other.
    """

    num_seeds: int = 3
    num_points: int = 10_000
    members: int = 1
    iterations: int | None = None
    learning_rates: tuple[float, ...] = ()
    first_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a table without runs."""
        if min(self.num_seeds, self.members) < 1 or self.num_points < 2:
            raise UserError("a table needs at least 1 seed, 1 run at a time and 2 points")
        if self.first_seed < 0:
            raise UserError("the first seed must not be negative")
        if any(not rate > 0 for rate in self.learning_rates):
            raise UserError("learning rates must be positive")

    def of(self, problem: str) -> Problem:
        """The problem with its budget."""
        found = PROBLEMS[problem]
        training = found.training
        if self.iterations is not None:
            every = min(training.eval_every, self.iterations)
            training = replace(training, iterations=self.iterations, eval_every=every)
        rates = self.learning_rates or found.learning_rates
        return replace(found, learning_rates=rates, training=training)


class Study:
    """Cells of one table, their records in ``folder``."""

    def __init__(self, folder: Path, budget: Budget, device: str = "cpu") -> None:
        self.folder, self.budget, self.device = folder, budget, device

    def num_evaluations(self, problem: str) -> int:
        """Evaluations of a cell."""
        column = self.budget.of(problem)
        runs = len(column.learning_rates) + self.budget.num_seeds - 1
        return runs * column.training.num_evaluations

    def cell(self, problem: str, method: str) -> Iterator[int]:
        """Run what is missing of a cell; yields the number of further evaluations done."""
        grid = self._grid(problem, method)
        yield from self._train(grid)
        yield from self._train(self._seeds(self._best(grid))[1:])

    def figures(self, problem: str, method: str) -> dict[str, Any]:
        """The figures of a finished cell.

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
            "divergence_truth": column.divergence,
            "learning_rate": best.learning_rate,
            "iterations": column.training.iterations,
            "best_steps": [record["best_step"] for record in records],
            "nfe": max(record["nfe"] for record in records),
            "quadrature_distance": max(record["quadrature_distance"] for record in records),
            "curves": [record["curve"] for record in records],
        }

    def _grid(self, problem: str, method: str) -> list[Run]:
        rates, seed = self.budget.of(problem).learning_rates, self.budget.first_seed
        return [Run(problem, method, rate, seed) for rate in rates]

    def _seeds(self, best: Run) -> list[Run]:
        return [replace(best, seed=best.seed + k) for k in range(self.budget.num_seeds)]

    def _best(self, grid: Sequence[Run]) -> Run:
        return min(grid, key=lambda run: self._read(run)["validation_error"])

    def _train(self, runs: Sequence[Run]) -> Iterator[int]:
        missing = []
        for run in runs:
            if not run.file(self.folder).exists():
                missing.append(run)
                continue
            self._read(run)
            yield self.budget.of(run.problem).training.num_evaluations
        # side by side only with one seed: what is fitted before training is then theirs in common
        for _, same in groupby(missing, key=lambda run: run.seed):
            rest = list(same)
            while rest:
                group, rest = rest[: self.budget.members], rest[self.budget.members :]
                for _ in self._train_group(group):
                    yield len(group)

    def _train_group(self, group: Sequence[Run]) -> Iterator[None]:
        column = self.budget.of(group[0].problem)
        pair, num = column.pair, self.budget.num_points
        validation = Points(pair, num, seeded(self.device, 0, VALIDATION))
        trainer = RatioTrainer(
            *(column.methods[group[0].method], pair, [run.seed for run in group]),
            torch.tensor([run.learning_rate for run in group]),
            column.training,
            validation.criterion,
            self.device,
        )
        curves: list[list] = [[] for _ in group]
        for evaluation in trainer.run():
            for index, curve in enumerate(curves):
                curve.append({"step": evaluation.step, **row(evaluation.figures, index)})
            yield
        points = Points(pair, num, seeded(self.device, 0, TEST))
        with trainer.best_weights() as ratio:
            fast, (careful, nfe) = ratio.log_ratio(points.x), ratio.exact_log_ratio(points.x)
            test = points.figures(careful) | of_matrix(ratio)
        for index, run in enumerate(group):
            figures = {
                "validation_error": trainer.best_error[index].item(),
                "best_step": trainer.best_step[index].item(),
                "test": row(test, index),
                "quadrature_distance": (careful - fast)[index].square().mean().item(),
                "nfe": nfe,
                "seconds": trainer.seconds,
                "curve": curves[index],
            }
            self._write(run, figures)

    def _identity(self, run: Run) -> dict[str, Any]:
        column = self.budget.of(run.problem)
        method = column.methods[run.method]
        return {
            **asdict(run),
            "settings": {"kind": type(method).__name__, **asdict(method)},
            "training": asdict(column.training),
            "num_points": self.budget.num_points,
        }

    def _write(self, run: Run, figures: dict[str, Any]) -> None:
        file = run.file(self.folder)
        with explained_write(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file.with_suffix(".tmp"), {**self._identity(run), "figures": figures})
            os.replace(file.with_suffix(".tmp"), file)

    def _read(self, run: Run) -> dict[str, Any]:
        file = run.file(self.folder)
        record = read_json(file)
        figures = record.pop("figures", None)
        if figures is None or record != self._identity(run):
            raise UserError(
                f"{file} holds a run of other settings: give the same ones or another --output_dir"
            )
        return figures


def row(figures: dict[str, Tensor], index: int) -> dict[str, float | None]:
    """The figures of one member; None where they are not finite, for which JSON has no word."""
    values = {name: value[index].item() for name, value in figures.items()}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
