r"""Training of a log-ratio estimator on known densities, by the paper's protocol.

Adam takes new draws at every step. Every ``eval_every`` steps the estimator is evaluated, and the
best weights are kept. The learning rate follows a cosine to zero and changes at the evaluations
(arXiv:2502.02300, appendix F).
"""

import copy
import math
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import TimeScores
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.points import EvaluationPoints
from ebm_app.utils.fields import PositiveInt, configuration
from ebm_app.utils.fitting import fit
from ebm_app.utils.random import make_generator

TRAIN, VALIDATION, TEST = range(3)


@configuration
class RatioTraining:
    """Length of a training run.

    Args:
        iterations: training steps. batch_size: draws of each density in a step.
        eval_every: steps between evaluations and between changes of the learning rate.
    """

    iterations: PositiveInt = 20_000
    batch_size: PositiveInt = 256
    eval_every: PositiveInt = 1_000

    def learning_rate_factor(self, step: int) -> float:
        """Return the learning-rate factor (1 + cos(pi n / N)) / 2, where n of N steps were
        completed at the last evaluation."""
        evaluated = step - step % self.eval_every
        return (1 + math.cos(math.pi * evaluated / self.iterations)) / 2


class Evaluation(NamedTuple):
    """Estimator after ``step`` steps, and the ``best`` one so far."""

    step: int
    ratio: TimeScoreRatio
    metrics: dict[str, float]
    best_error: float
    best_step: int
    best: TimeScoreRatio


def train(
    method: TimeScores,
    pair: DensityPair,
    seed: int,
    lr: float,
    training: RatioTraining,
    points: EvaluationPoints,
    device: str = "cpu",
) -> Iterator[Evaluation]:
    """Train an estimator; yields an evaluation before the first step, every ``eval_every`` steps
    and after the last.

    Args:
        seed: seed of initial weights and draws. lr: learning rate of Adam.
        points: validation points, on which the best weights have the smallest error.

    Raises:
        NumericalError: if a loss is not finite.
    """
    ratio, generator = method.build(pair, seed, device), make_generator(device, seed, TRAIN)
    sampler = method.sampler

    def loss(_: int) -> Tensor:
        num = training.batch_size
        x0, x1 = pair.p0.sample(num, generator), pair.p1.sample(num, generator)
        noise = torch.randn(x0.shape, device=x0.device, generator=generator)
        return ratio.loss(x0, x1, noise, sampler.sample(num, generator)).mean()

    steps = fit(
        ratio.parameters(), loss, training.iterations, lr, factor=training.learning_rate_factor
    )
    best = math.inf, 0, copy.deepcopy(ratio)
    for step in chain([0], steps):
        if step % training.eval_every == 0 or step == training.iterations:
            metrics = points.metrics(ratio.log_ratio(points.x))
            if metrics["error"] < best[0]:
                best = metrics["error"], step, copy.deepcopy(ratio)
            yield Evaluation(step, ratio, metrics, *best)
