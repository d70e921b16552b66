r"""The log ratio of two densities, from a sample of each, at any point and with an error.

    r(x) = log p_1(x) / p_0(x),   in nats.

The rows of both samples are cut into K folds. A ratio r_k is learned without fold k. All are
normalised by one constant, by which the mean of exp r_k(x) over the rows x of p_0 that r_k was
learned without is 1. At a new point

    r(x) = mean_k r_k(x),   error^2 = (K - 1) / K  sum_k (r_k(x) - r(x))^2,

the jackknife over folds. It knows the noise of rows and networks, not what all r_k miss alike.

>>> import numpy as np
>>> from ebm_app import log_density_ratio
>>> numbers = np.random.default_rng(0)
>>> x0, x1 = numbers.normal(0, 1, (1_000, 2)), numbers.normal(0.5, 1, (800, 2))
>>> ratio = log_density_ratio(x0, x1)  # (x_1 + x_2) / 2 - 1 / 4
>>> value, error = ratio.score_samples(np.ones((1, 2)), return_std=True)
>>> bool(abs(value[0] - 0.75) < 0.3), ratio.interval[0] < 0.25 < ratio.interval[1]
(True, True)

Sources: Sugiyama, Suzuki and Kanamori, "Density Ratio Estimation in Machine Learning", 2012,
chapter 4 (by classification); Efron and Stein 1981, https://doi.org/10.1214/aos/1176345462.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.fields import Seed, Several, Steps, argument_of
from ebm_app.numerics.tensors import seeded
from ebm_app.tabular.class_ratio import ClassRatio
from ebm_app.tabular.classifier import BATCH_SIZE, Classifiers, Draws
from ebm_app.tabular.columns import Columns, check_rows
from ebm_app.tabular.folds import Folds
from ebm_app.tabular.ratio_estimate import RatioEstimate, combined
from ebm_app.tabular.scores import AsinhScores

#: streams of random numbers
FOLDS, BATCHES = range(2)


def log_density_ratio(
    x0: Any, x1: Any, num_folds: int = 10, steps: int = 2_000, random_state: int = 0
) -> RatioEstimate:
    """log p_1 / p_0 from independent rows of both densities.

    Args:
        x0, x1: arrays or data frames of numbers, (N0, D) and (N1, D), or (N,) for one column.
        num_folds: K, parts of the rows, at least 2. steps: of the classifiers, at most.
        random_state: seed of the folds, weights and batches.

    >>> numbers = np.random.default_rng(0)
    >>> ratio = log_density_ratio(numbers.normal(size=300), numbers.normal(size=200))
    >>> ratio.p_value > 0.01, ratio.score_samples(np.zeros(3)).shape
    (True, (3,))

    Raises:
        UserError: for data that are not real numbers, or not of the same columns, NaN or infinite
            values, columns that never vary, and fewer than 5 distinct rows a fold.
    """
    estimation = RatioEstimation(x0, x1, num_folds, steps, random_state)
    for _ in estimation.run():
        pass
    return estimation.result()


class RatioEstimation:
    """The steps of ``log_density_ratio``, for who wants to see them pass: iterate ``run``, then
    ask for the ``result``.

    Networks and the discriminant analysis that they start from read the asinh scores of the
    columns, the networks their mean square too: a map under which a density ratio stays as it is.
    """

    def __init__(
        self, x0: Any, x1: Any, num_folds: int = 10, steps: int = 2_000, random_state: int = 0
    ) -> None:
        self.num_folds = argument_of(Several, "num_folds", num_folds)
        steps = argument_of(Steps, "steps", steps)
        random_state = argument_of(Seed, "random_state", random_state)
        samples = Columns.of(x0, "x0"), Columns.of(x1, "x1")
        samples[0].check_same(samples[1])
        generator, self.folds = seeded("cpu", random_state, FOLDS), []
        for sample in samples:
            sample.check_finite()
            sample.check_vary()
            folds = Folds(sample.values, self.num_folds, generator)
            num = folds.num_distinct
            distinct = f"{sample.what} has {num} rows that differ from each other"
            check_rows(num, distinct, self.num_folds, 2)
            self.folds.append(folds)
        self.sample0, self.num0 = samples[0], len(samples[0].values)
        both = np.concatenate([sample.values for sample in samples])
        self.scaling = AsinhScores.fit(both)
        scores = self.scaling(both)
        self.inputs = inputs_of(scores)
        #: numbers of the rows of both samples, one after the other, of each fold that is left out:
        #: for either sample those learned from, and those that choose the step
        self.splits, self.models = [], []
        which = (np.arange(len(both)) >= self.num0).astype(int)
        for number in range(self.num_folds):
            of0, of1 = (folds.split(folds.fold != number) for folds in self.folds)
            of1 = tuple(rows + self.num0 for rows in of1)
            self.splits.append((of0, of1))
            parts = [torch.cat(rows).numpy() for rows in zip(of0, of1, strict=True)]
            try:
                self.models.append(ClassRatio.fit(scores, which, *parts))
            except ValueError:  # as numpy and scipy say of a singular covariance
                raise UserError(
                    "columns of x0 and x1 are of scales too far apart, or determine each other: "
                    "rescale them, or leave some out"
                ) from None
        self.bases = [torch.from_numpy(model.of_two(scores)) for model in self.models]
        self.generator = seeded("cpu", random_state, BATCHES)
        dim = self.inputs.shape[1]
        self.classifiers = Classifiers(self.num_folds, dim, steps, self.generator)

    def run(self) -> Iterator[int]:
        """Train; yields the step after every validation."""
        return self.classifiers.train(self._draws_of_step, self._validation())

    def result(self) -> RatioEstimate:
        """The ratio from what is learned so far."""
        fold = torch.cat([folds.fold for folds in self.folds])
        values = torch.empty(len(fold), dtype=torch.float64)
        for number, base in enumerate(self.bases):
            rows = fold == number
            values[rows] = base[rows] + self._residual(number, self.inputs[rows])
        groups = tuple(folds.groups for folds in self.folds)
        return combined(values[: self.num0], values[self.num0 :], groups, self.at, self.sample0)

    def at(self, x: np.ndarray) -> np.ndarray:
        """At rows (n, D) the log ratios of all folds before the normaliser, (K, n), in nats."""
        scores = self.scaling(x)
        inputs = inputs_of(scores)
        parts = [
            model.of_two(scores) + self._residual(number, inputs).numpy()
            for number, model in enumerate(self.models)
        ]
        return np.stack(parts)

    def _residual(self, number: int, inputs: Tensor) -> Tensor:
        return self.classifiers.residual(slice(number, number + 1), inputs)

    def _draws_of_step(self) -> Draws:
        """As many rows of both samples for each classifier, drawn with replacement."""

        def drawn(rows: Tensor) -> Tensor:
            return rows[torch.randint(len(rows), (BATCH_SIZE,), generator=self.generator)]

        return self._draws([(drawn(of1[0]), drawn(of0[0])) for of0, of1 in self.splits])

    def _validation(self) -> Draws:
        """Rows left aside of both samples, as many of each as there are of the smaller one."""
        pairs = [(of1[1], of0[1]) for of0, of1 in self.splits]
        return self._draws([[rows[: min(map(len, pair))] for rows in pair] for pair in pairs])

    def _draws(self, rows: Sequence[Sequence[Tensor]]) -> Draws:
        """Of row numbers (B,) of p_1 and (B,) of p_0 for each classifier."""
        pairs = [torch.stack(list(pair)) for pair in rows]
        bases = [base[pair] for base, pair in zip(self.bases, pairs, strict=True)]
        return Draws.padded(bases, [self.inputs[pair] for pair in pairs])


def inputs_of(scores: np.ndarray) -> Tensor:
    """What a network reads of scores (n, D): (n, D + 1), float32.

    >>> inputs_of(np.zeros((5, 3))).shape
    torch.Size([5, 4])
    """
    radius = (scores**2).mean(1, keepdims=True) - 1
    return torch.from_numpy(np.hstack([scores, radius])).float()
