r"""Classifiers between pairs and shuffled pairs, over the Student-t copula of ranks.

    b + f -> log p(x, y) / (p(x) p(y)),   in nats,

with p_1 = p(x, y) and p_0 = p(x) p(y), whose draws are the pairs of a batch with y moved on by a
few places, as in Belghazi et al. 2018, arXiv:1801.04062.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.tabular.classifier import Batch, Classifiers, ClassifierTraining
from ebm_app.tabular.t_copula import TCopula


class Pairs(NamedTuple):
    """What the networks read of N rows: features ``x`` (N, fx) and ``y`` (N, fy)."""

    x: Tensor
    y: Tensor


class Fit(NamedTuple):
    """A ratio to learn: its ``copula``, the quantiles ``s`` (N, D) of all rows by it, float64, and
    the numbers of the rows it is learned from and validated on."""

    copula: TCopula
    s: Tensor
    train: Tensor
    validation: Tensor


class PairClassifiers:
    """Classifiers for each of several fits.

    Args:
        pairs: of all rows, float32. fits: what to learn. training: how.
        generator: of weights, batches and shuffles.
        num_members: classifiers of every fit, whose log ratios are averaged.
    """

    def __init__(
        self,
        pairs: Pairs,
        fits: Sequence[Fit],
        training: ClassifierTraining,
        generator: torch.Generator,
        num_members: int = 1,
    ) -> None:
        self.pairs, self.fits, self.training, self.generator = pairs, fits, training, generator
        self.num_members = num_members
        self._learners = [fit for fit in fits for _ in range(num_members)]
        dim = pairs.x.shape[1] + pairs.y.shape[1]
        self.stack = Classifiers(len(self._learners), dim, training, generator)
        self._validation = self._batch([fit.validation for fit in self._learners])

    def train(self) -> Iterator[int]:
        """Train to the end; yields the step after every validation."""
        return self.stack.train(lambda: self._batch(self._draw_rows()), self._validation)

    @torch.no_grad()
    def log_ratio(self, number: int, x_rows: Tensor, y_rows: Tensor) -> Tensor:
        """The log ratio of one fit at pairs of rows (n,) and (n,): (n,), float64."""
        base = self._base(self.fits[number], x_rows, y_rows)
        inputs = torch.cat([self.pairs.x[x_rows], self.pairs.y[y_rows]], 1)
        members = slice(number * self.num_members, (number + 1) * self.num_members)
        return base + self.stack.residual(members, inputs)

    def _draw_rows(self) -> list[Tensor]:
        rows = []
        for fit in self._learners:
            size = min(self.training.batch_size, len(fit.train))
            place = torch.randint(len(fit.train), (size,), generator=self.generator)
            rows.append(fit.train[place])
        return rows

    def _batch(self, rows: list[Tensor]) -> Batch:
        """Rows of every fit and their shuffles."""
        shifts = torch.randint(
            1, min(map(len, rows)), (self.training.num_shuffles,), generator=self.generator
        )
        bases, inputs = [], []
        for fit, part in zip(self._learners, rows, strict=True):
            y_rows = torch.stack([part] + [part.roll(-int(shift)) for shift in shifts])
            x_rows = part.expand_as(y_rows)
            base = self._base(fit, x_rows.reshape(-1), y_rows.reshape(-1)).float()
            bases.append(base.view(y_rows.shape))
            inputs.append(torch.cat([self.pairs.x[x_rows], self.pairs.y[y_rows]], 2))
        return Batch.padded(bases, inputs)

    @staticmethod
    def _base(fit: Fit, x_rows: Tensor, y_rows: Tensor) -> Tensor:
        dim_x = fit.copula.dim_x
        return fit.copula.log_ratio(torch.cat([fit.s[x_rows, :dim_x], fit.s[y_rows, dim_x:]], 1))
