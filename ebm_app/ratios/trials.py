"""One training of a log ratio, with its metrics and plots while it runs.

A trial is a problem, a path, a method and a seed. Trials of one problem and seed see the same
draws and have the same evaluation points, so that methods can be compared.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import TimeScores, methods_of
from ebm_app.ratios.pairs import DensityPair, standard_normal
from ebm_app.ratios.points import DensityGrid, EvaluationPoints, as_numbers
from ebm_app.ratios.problems import TOY_PROBLEMS
from ebm_app.ratios.toy_2d import TOY_2D
from ebm_app.ratios.training import (
    TEST,
    VALIDATION,
    Evaluation,
    Metrics,
    RatioTrainer,
    RatioTraining,
    draw,
)

#: small enough that an evaluation takes about as long as the steps between two of them
NUM_POINTS, NUM_LOSS_DRAWS, NUM_GRID_DRAWS = 600, 2_048, 40_000
PAIRS: dict[str, DensityPair] = {
    **{name: problem.pair for name, problem in TOY_PROBLEMS.items() if "sigma" not in name},
    **{name: DensityPair(standard_normal(2), data) for name, data in TOY_2D.items()},
}
#: the sigma of the Schrodinger bridge; None is the variance-preserving path
SIGMAS: dict[str, float | None] = {
    "variance_preserving": None,
    "bridge_sigma1": 1.0,
    "bridge_sigma1.41": math.sqrt(2),
}
METHODS = tuple(methods_of(None))


def paths_of(problem: str) -> list[str]:
    """The paths that suit a problem: the variance-preserving one starts at N(0, I)."""
    is_any = problem.startswith("mixtures")
    return [name for name, sigma in SIGMAS.items() if not (is_any and sigma is None)]


@dataclass(frozen=True)
class Trial:
    """What is trained.

    Args:
        problem: a key of ``PAIRS``. path: one of ``paths_of``. method: one of ``METHODS``.
        learning_rate: of Adam. training: the budget. seed: of the weights and the draws.

    Raises:
        UserError: for an unknown name, a path that does not suit the problem, and a learning rate
            that is not positive.
    """

    problem: str
    path: str
    method: str
    learning_rate: float = 2e-3
    training: RatioTraining = RatioTraining(1_000, eval_every=50)
    seed: int = 0

    def __post_init__(self) -> None:
        choose("problem", self.problem, PAIRS)
        choose("path", self.path, SIGMAS)
        choose("method", self.method, METHODS)
        if self.path not in paths_of(self.problem):
            raise UserError(
                f"the path {self.path} starts at N(0, I), which {self.problem} does not: choose "
                f"one of {', '.join(paths_of(self.problem))}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"the learning rate is {self.learning_rate}: give a positive number")

    @property
    def pair(self) -> DensityPair:
        """The two densities."""
        return PAIRS[self.problem]

    def build(self) -> TimeScores:
        """The method on its path."""
        return methods_of(SIGMAS[self.path])[self.method]


class TrialEvaluator:
    """Draws that stay the same, and the metrics of an estimator on them.

    Args:
        pair: the densities. method: gives the path and the times of the loss.
        generator: of the draws; the same one gives every method the same.
    """

    def __init__(self, pair: DensityPair, method: TimeScores, generator: torch.Generator) -> None:
        self.points = EvaluationPoints(pair, NUM_POINTS, generator)
        times = method.sampler.sample
        self.draw = draw(pair, times, NUM_LOSS_DRAWS, generator)
        self.grid = None
        if pair.dim == 2:
            rows = draw(pair, times, NUM_GRID_DRAWS, generator)
            self.grid = DensityGrid(pair, method.path, rows)

    def criterion(self, ratio: TimeScoreRatio) -> Metrics:
        """Metrics by name: "loss"; "error", the mean squared error in nats^2; "divergence", the
        mean log ratio over p_1 in nats; "estimate" (N,), the log ratios; and on the plane
        "log_densities" and "time_scores" (T, side, side) and "mass", the integral of the learned
        p_1."""
        estimate = ratio.log_ratio(self.points.x)
        metrics = {"loss": ratio.loss(self.draw).detach().double().mean(), "estimate": estimate}
        metrics |= self.points.metrics(estimate)
        if self.grid is not None:
            metrics["log_densities"] = self.grid.log_densities(ratio)
            metrics["time_scores"] = self.grid.time_scores(ratio)
            metrics["mass"] = self.grid.mass(metrics["log_densities"][-1])
        return {name: value.cpu() for name, value in metrics.items()}


class Snapshot(NamedTuple):
    """The state of a trial at an evaluation.

    Attributes:
        step: steps done. best_step: with the least error so far. evaluator: gave the metrics.
        is_final: whether they are those of the best weights on fresh draws, not of the present
            ones.
        scalars: the metrics of one number; None where not finite.
        curve: the scalars of every evaluation, with "step".
        estimate: (N,) at the evaluator's points. log_densities, time_scores: (T, side, side), on
            the plane.
    """

    trial: Trial
    step: int
    best_step: int
    evaluator: TrialEvaluator
    is_final: bool
    scalars: dict[str, float | None]
    curve: list[dict[str, float | None]]
    estimate: Tensor
    log_densities: Tensor | None
    time_scores: Tensor | None


def watch(trial: Trial, device: str = "cpu") -> Iterator[Snapshot]:
    """Train: a snapshot at every evaluation and, after the last one, that of the best weights on
    fresh draws.

    Raises:
        NumericalError: for a loss that is not finite.
    """
    method, curve = trial.build(), []
    validation = TrialEvaluator(trial.pair, method, seeded(device, 0, VALIDATION))
    settings = (trial.seed, trial.learning_rate, trial.training)
    trainer = RatioTrainer(method, trial.pair, *settings, validation.criterion, device)

    def snapshot(evaluator: TrialEvaluator, found: Evaluation, is_final: bool) -> Snapshot:
        metrics = found.metrics
        scalars = as_numbers({name: value for name, value in metrics.items() if value.ndim == 0})
        if not is_final:
            curve.append({"step": found.step, **scalars})
        at = trial, found.step, trainer.best_step, evaluator, is_final, scalars, list(curve)
        planes = map(metrics.get, ("log_densities", "time_scores"))
        return Snapshot(*at, metrics["estimate"], *planes)

    for evaluation in trainer.run():
        yield snapshot(validation, evaluation, is_final=False)
    test = TrialEvaluator(trial.pair, method, seeded(device, 0, TEST))
    last = Evaluation(trial.training.iterations, test.criterion(trainer.best_ratio()))
    yield snapshot(test, last, is_final=True)
