r"""Classifiers between two samples, over a log ratio of Gaussians, of which a part is left out.

    b + f -> log p_1(x) / p_0(x),   in nats,

with b of ``gaussian_base`` and f of ``classifier``. All read the asinh scores of the columns and
the mean square of these, a map under which a density ratio stays as it is.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.tabular.classifier import Batch, Classifiers, ClassifierTraining
from ebm_app.tabular.gaussian_base import best_base


class Split(NamedTuple):
    """Numbers of the rows of one sample that are learned from, and that choose the step."""

    train: Tensor
    validation: Tensor


class RatioClassifiers:
    """Classifiers for each of several splits.

    Args:
        scores: of both samples, (N0, D) and (N1, D), float64.
        splits: of each ratio to learn, those of the rows of p_0 and of p_1.
        training: how. generator: of weights and batches.
        num_members: classifiers of every split, whose log ratios are averaged.
    """

    def __init__(
        self,
        scores: tuple[Tensor, Tensor],
        splits: Sequence[tuple[Split, Split]],
        training: ClassifierTraining,
        generator: torch.Generator,
        num_members: int = 1,
    ) -> None:
        self.scores, self.training, self.generator = scores, training, generator
        self.num_members = num_members
        self.bases = []
        for of0, of1 in splits:
            train = scores[0][of0.train], scores[1][of1.train]
            validation = scores[0][of0.validation], scores[1][of1.validation]
            self.bases.append(best_base(train, validation))
        self._learners = [number for number in range(len(splits)) for _ in range(num_members)]
        self.splits = splits
        dim = scores[0].shape[1] + 1
        self.stack = Classifiers(len(self._learners), dim, training, generator)

    def train(self) -> Iterator[int]:
        """Train to the end; yields the step after every validation."""
        return self.stack.train(self._draw, self._validation())

    @torch.no_grad()
    def log_ratio(self, number: int, scores: Tensor) -> Tensor:
        """The log ratio of one split at scores (n, D): (n,), float64."""
        members = slice(number * self.num_members, (number + 1) * self.num_members)
        return self.bases[number](scores) + self.stack.residual(members, inputs_of(scores))

    def doubt(self, scores: Tensor) -> Tensor:
        """The root mean square over the splits of what their bases left out as not told from 0,
        (n,) at scores (n, D), in nats; see ``NoRatio``."""
        return torch.stack([base.doubt(scores).square() for base in self.bases]).mean(0).sqrt()

    def _draw(self) -> Batch:
        """As many rows of every sample for each learner, drawn with replacement."""
        size, shuffles = self.training.batch_size, self.training.num_shuffles
        rows = []
        for number in self._learners:
            of0, of1 = (split.train for split in self.splits[number])
            sets = [of1, *[of0] * shuffles]
            rows.append(torch.stack([self._any(part, size) for part in sets]))
        return self._batch(rows)

    def _any(self, rows: Tensor, size: int) -> Tensor:
        return rows[torch.randint(len(rows), (size,), generator=self.generator)]

    def _validation(self) -> Batch:
        """Rows left aside of both samples, as many of each as there are of the smaller one."""
        rows = []
        for number in self._learners:
            of0, of1 = (split.validation for split in self.splits[number])
            size = min(len(of0), len(of1))
            sets = [of1, *[of0] * self.training.num_shuffles]
            chosen = [torch.randperm(len(part), generator=self.generator)[:size] for part in sets]
            rows.append(torch.stack([part[at] for part, at in zip(sets, chosen, strict=True)]))
        return self._batch(rows)

    def _batch(self, rows: Sequence[Tensor]) -> Batch:
        """Of row numbers (1 + S, B) for each learner, of p_1 and then of p_0."""
        bases, inputs = [], []
        for number, part in zip(self._learners, rows, strict=True):
            scores = torch.cat([self.scores[1][part[:1]], self.scores[0][part[1:]]])
            bases.append(self.bases[number](scores.flatten(0, 1)).float().view(part.shape))
            inputs.append(inputs_of(scores))
        return Batch.padded(bases, inputs)


def inputs_of(scores: Tensor) -> Tensor:
    """What a network reads of scores (*, D): (*, D + 1), float32.

    >>> inputs_of(torch.zeros(5, 3, dtype=torch.float64)).shape
    torch.Size([5, 4])
    """
    radius = scores.square().mean(-1, keepdim=True) - 1
    return torch.cat([scores, radius], -1).float()


def split_rows(
    group: Tensor, num_folds: int, validation_share: float, generator: torch.Generator
) -> tuple[Tensor, list[Split]]:
    """The fold (N,) of every row, and the splits that leave out each fold; rows of the same group
    (N,), copies of one another, stay together."""
    num_groups = int(group.max()) + 1
    place = torch.randperm(num_groups, generator=generator)
    fold = (place % num_folds)[group]
    order = torch.rand(num_groups, generator=generator)[group]
    splits = []
    for number in range(num_folds):
        inside = fold != number
        cut = order[inside].unique().quantile(validation_share)
        validates = inside & (order <= cut)
        splits.append(
            Split((inside & ~validates).nonzero().flatten(), validates.nonzero().flatten())
        )
    return fold, splits
