r"""Training of a log-ratio estimator, by the paper's protocol.

Adam on fresh draws at every step; every ``eval_every`` steps a criterion is taken, and the weights
with the best are kept. The learning rate follows a cosine to zero, stepped at the evaluations
(arXiv:2502.02300, appendix F).

>>> from ebm_app.ratios.pairs import gaussian_pair
>>> from ebm_app.ratios.methods import TimeScores
>>> from ebm_app.ratios.points import EvaluationPoints
>>> pair = gaussian_pair(2, shift=1.0)  # log p_1/p_0 = x_1 + x_2 - 1
>>> points = EvaluationPoints(pair, 100, seeded("cpu", VALIDATION))
>>> short = RatioTraining(20, batch_size=64, eval_every=10)
>>> trainer = RatioTrainer(TimeScores(), pair, 0, 1e-2, short, points.criterion)
>>> errors = [evaluation.metrics["error"].item() for evaluation in trainer.run()]
>>> len(errors), errors[-1] < errors[0]
(3, True)
>>> trainer.best_ratio().log_ratio(points.x).shape
torch.Size([100])
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.io.fields import PositiveInt, configuration
from ebm_app.numerics.fitting import fit
from ebm_app.numerics.tensors import seeded
from ebm_app.objectives.time_sampling import TimeSample
from ebm_app.ratios.estimators import EndPoints, TimeScoreRatio
from ebm_app.ratios.methods import TimeScores
from ebm_app.ratios.pairs import DensityPair

TRAIN, VALIDATION, TEST = range(3)
Metrics = dict[str, Tensor]
#: (estimator) -> metrics by name; the best estimator has the least "error" ()
Criterion = Callable[[TimeScoreRatio], Metrics]


@configuration
class RatioTraining:
    """How long a training is.

    Args:
        iterations: steps, of ``batch_size`` draws of either density.
        eval_every: steps between evaluations; the learning rate falls with them.
    """

    iterations: PositiveInt = 20_000
    batch_size: PositiveInt = 256
    eval_every: PositiveInt = 1_000

    def learning_rate_factor(self, step: int) -> float:
        """(1 + cos(pi n / N)) / 2 after n of N steps, n at the last evaluation."""
        evaluated = step - step % self.eval_every
        return (1 + math.cos(math.pi * evaluated / self.iterations)) / 2


class Evaluation(NamedTuple):
    """The criterion after ``step`` steps."""

    step: int
    metrics: Metrics


class RatioTrainer:
    """Trains an estimator.

    Args:
        method: what to train. pair: the densities, or data that stand for them.
        seed: of the initial weights and the draws. lr: learning rate of Adam.
        training: how long. criterion: by which the best weights are chosen.
        device: "cpu" or "cuda".

    Attributes:
        best_error, best_step: the least error at an evaluation, and the steps before it.
    """

    def __init__(
        self,
        method: TimeScores,
        pair: DensityPair,
        seed: int,
        lr: float,
        training: RatioTraining,
        criterion: Criterion,
        device: str = "cpu",
    ) -> None:
        self.ratio = method.build(pair, seed, device)
        self.pair, self.training, self.criterion = pair, training, criterion
        self.sampler = method.sampler
        self.generator = seeded(device, seed, TRAIN)
        self.steps = fit(
            self.ratio.parameters(),
            lambda _: self.ratio.loss(self.draw()).mean(),
            training.iterations,
            lr,
            factor=training.learning_rate_factor,
        )
        self.best_state = copy.deepcopy(self.ratio.state_dict())
        self.best_error, self.best_step = math.inf, 0

    def run(self) -> Iterator[Evaluation]:
        """Train to the end: an evaluation before the first step, every ``eval_every`` steps and
        after the last.

        Raises:
            NumericalError: for a loss that is not finite; the best weights so far are kept.
        """
        yield self._evaluate(0)
        for step in self.steps:
            if step % self.training.eval_every == 0 or step == self.training.iterations:
                yield self._evaluate(step)

    def draw(self) -> EndPoints:
        """The rows of one step."""
        return draw(self.pair, self.sampler.sample, self.training.batch_size, self.generator)

    def best_ratio(self) -> TimeScoreRatio:
        """An estimator with the weights of the best evaluation."""
        best = copy.deepcopy(self.ratio)
        best.load_state_dict(self.best_state)
        return best

    def _evaluate(self, step: int) -> Evaluation:
        metrics = self.criterion(self.ratio)
        error = metrics["error"].item()
        if error < self.best_error:
            self.best_error, self.best_step = error, step
            self.best_state = copy.deepcopy(self.ratio.state_dict())
        return Evaluation(step, metrics)


def draw(
    pair: DensityPair,
    times: Callable[[int, torch.Generator], TimeSample],
    num: int,
    generator: torch.Generator,
) -> EndPoints:
    """``num`` rows of either density with noise and times."""
    x0, x1 = pair.p0.sample(num, generator), pair.p1.sample(num, generator)
    noise = torch.randn(x0.shape, device=x0.device, generator=generator)
    return EndPoints(x0, x1, noise, times(num, generator))
