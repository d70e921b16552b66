r"""Training of log-ratio estimators side by side, by the paper's protocol.

Adam on fresh draws at every step; every ``eval_every`` steps a criterion is taken, and the weights
with the best are kept. The learning rate follows a cosine to zero, stepped at the evaluations
(arXiv:2502.02300, appendix F).

Every member draws from a generator of its own seed, so that it learns the same alone or beside
others.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.numerics import seeded
from ebm_app.objectives.time_sampling import TimeSample
from ebm_app.ratios.data.pairs import Pair
from ebm_app.ratios.methods import Method
from ebm_app.ratios.nets import StackAdam
from ebm_app.ratios.stacks import Draw, RatioStack

TRAIN, VALIDATION, TEST = range(3)
#: (estimators) -> figures by name, (M,) each; the best has the least "error"
Criterion = Callable[[RatioStack], dict[str, Tensor]]


@dataclass(frozen=True)
class RatioTraining:
    """The budget of a run.

    Args:
        iterations: steps, of ``batch_size`` draws of either density.
        eval_every: steps between evaluations; the learning rate falls with them.
    """

    iterations: int = 20_000
    batch_size: int = 256
    eval_every: int = 1_000

    def __post_init__(self) -> None:
        """Refuse numbers that make no run."""
        if min(self.iterations, self.batch_size, self.eval_every) < 1:
            raise UserError("iterations, batch_size and eval_every must be at least 1")

    @property
    def num_evaluations(self) -> int:
        """Before the first step, every ``eval_every`` steps, and after the last."""
        return 1 + math.ceil(self.iterations / self.eval_every)


class Evaluation(NamedTuple):
    """The criterion after ``step`` steps, which took ``seconds`` without the evaluations."""

    step: int
    seconds: float
    figures: dict[str, Tensor]


class RatioTrainer:
    """Trains the members of a stack.

    Args:
        method: what to train. pair: the densities, or data that stand for them.
        seeds: of every member; members of one seed see the same draws.
        lr: learning rates (M,).
        training: the budget.
        criterion: by which the best weights are chosen.
        device: "cpu" or "cuda".
    """

    def __init__(
        self,
        method: Method,
        pair: Pair,
        seeds: Sequence[int],
        lr: Tensor,
        training: RatioTraining,
        criterion: Criterion,
        device: str = "cpu",
    ) -> None:
        self.ratio = method.build(pair, seeds, device)
        self.pair, self.training, self.criterion = pair, training, criterion
        self.sampler, self.ema_decay = method.sampler, method.ema_decay
        self.optimizer = StackAdam(self.ratio.stack, lr)
        distinct = sorted(set(seeds))
        self.place = [distinct.index(seed) for seed in seeds]
        self.generators = [seeded(device, seed, TRAIN) for seed in distinct]
        self.average = self.ratio.stack.weights.detach().clone()
        self.best = self.average.clone()
        self.best_error = torch.full((len(seeds),), math.inf, dtype=torch.float64)
        self.best_step = torch.zeros(len(seeds), dtype=torch.int64)
        self.step, self.seconds = 0, 0.0

    def run(self) -> Iterator[Evaluation]:
        """Train to the end, with the evaluations of :attr:`RatioTraining.num_evaluations`."""
        training = self.training
        yield self._evaluate()
        begin = time.perf_counter()
        while self.step < training.iterations:
            self.train_step()
            if self.step % training.eval_every and self.step < training.iterations:
                continue
            self.seconds += time.perf_counter() - begin
            yield self._evaluate()
            begin = time.perf_counter()

    def train_step(self) -> None:
        """One update of every member."""
        training = self.training
        loss = self.ratio.loss(self.draw())
        # each member's mean loss; in the sum they do not touch each other's weights
        loss.unflatten(0, (len(self.place), -1)).mean(1).sum().backward()
        share = self.step // training.eval_every * training.eval_every / training.iterations
        self.optimizer.step((1 + math.cos(math.pi * share)) / 2)
        self.step += 1
        if self.ema_decay:
            weight = 1 - min(self.ema_decay, self.step / (self.step + 10))
            self.average.lerp_(self.ratio.stack.weights.detach(), weight)

    def draw(self) -> Draw:
        """The rows of one step: M parts of ``batch_size``."""
        draws = [
            draw(self.pair, self.sampler.sample, self.training.batch_size, generator)
            for generator in self.generators
        ]
        return join([draws[place] for place in self.place])

    @contextmanager
    def best_weights(self) -> Iterator[RatioStack]:
        """The estimators with the weights of the best evaluation."""
        with self._weights(self.best):
            yield self.ratio

    @contextmanager
    def _weights(self, values: Tensor) -> Iterator[None]:
        weights = self.ratio.stack.weights.data
        kept = weights.clone()
        weights.copy_(values)
        try:
            yield
        finally:
            weights.copy_(kept)

    def _evaluate(self) -> Evaluation:
        current = self.average if self.ema_decay else self.ratio.stack.weights.detach().clone()
        with self._weights(current):
            figures = {name: value.cpu() for name, value in self.criterion(self.ratio).items()}
        is_better = figures["error"] < self.best_error
        self.best[is_better] = current[is_better]
        self.best_error = torch.where(is_better, figures["error"], self.best_error)
        self.best_step[is_better] = self.step
        return Evaluation(self.step, self.seconds, figures)


def draw(
    pair: Pair,
    times: Callable[[int, torch.Generator], TimeSample],
    num: int,
    generator: torch.Generator,
) -> Draw:
    """``num`` rows of either density with noise and times."""
    x0, x1 = pair.sample0(num, generator), pair.sample1(num, generator)
    noise = torch.randn(x0.shape, device=x0.device, generator=generator)
    return Draw(x0, x1, noise, times(num, generator))


def join(draws: Sequence[Draw]) -> Draw:
    """The rows of several draws one after the other."""
    x0, x1, noise = (torch.cat([part[k] for part in draws]) for k in range(3))
    return Draw(
        x0,
        x1,
        noise,
        TimeSample(*(torch.cat(t) for t in zip(*(part.times for part in draws), strict=True))),
    )
