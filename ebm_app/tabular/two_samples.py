r"""The log ratio of two densities, from a sample of each, at any point and with an error.

    r(x) = log p_1(x) / p_0(x),   in nats.

The rows of both samples are cut into K folds. A ratio r_k is learned without fold k. All are
normalised by one constant, by which the mean of exp r_k(x) over the rows x of p_0 that r_k was
learned without is 1. At a new point

    r(x) = mean_k r_k(x),   error^2 = (K - 1) / K  sum_k (r_k(x) - r(x))^2,

the jackknife over folds. It knows the noise of rows and networks, not what all r_k miss alike.

Sources: Sugiyama, Suzuki and Kanamori, "Density Ratio Estimation in Machine Learning", 2012,
chapter 4 (by classification); Efron and Stein 1981, https://doi.org/10.1214/aos/1176345462.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.tabular.classifier import BATCH_SIZE, Classifiers, Draws
from ebm_app.tabular.columns import Columns, check_rows
from ebm_app.tabular.drift import column_p_values
from ebm_app.tabular.gaussian_base import GaussianRatio, best_base
from ebm_app.tabular.ratio_estimate import RatioEstimate
from ebm_app.tabular.scores import AsinhScores, row_groups
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import AtLeastTwo, Seed, Steps, check_argument
from ebm_app.utils.random import make_generator
from ebm_app.utils.tensors import log_mean_exp

#: streams of random numbers
FOLDS, BATCHES = range(2)
#: of the rows learned from, by which the step of least loss is found
VALIDATION_SHARE = 0.2


def log_density_ratio(
    x0: Any, x1: Any, num_folds: int = 10, steps: int = 2_000, random_state: int = 0
) -> RatioEstimate:
    """log p_1 / p_0 from independent rows of both densities.

    Args:
        x0, x1: arrays or data frames of numbers, (N0, D) and (N1, D), or (N,) for one column.
        num_folds: K, parts of the rows, at least 2. steps: of the classifiers, at most.
        random_state: seed of the folds, weights and batches.

    >>> numbers = np.random.default_rng(0)
    >>> x0, x1 = numbers.normal(0, 1, (1_000, 2)), numbers.normal(0.5, 1, (800, 2))
    >>> ratio = log_density_ratio(x0, x1)  # (x_1 + x_2) / 2 - 1 / 4
    >>> value, error = ratio.score_samples(np.ones((1, 2)), return_std=True)
    >>> bool(abs(value[0] - 0.75) < 0.3), ratio.interval[0] < 0.25 < ratio.interval[1]
    (True, True)

    Raises:
        UserError: for data that are not real numbers, or not of the same columns, NaN or infinite
            values, columns that never vary, and fewer than 5 distinct rows a fold.
    """
    estimation = RatioEstimation(x0, x1, num_folds, steps, random_state)
    for _ in estimation.run():
        pass
    return estimation.result()


class Fold(NamedTuple):
    """What is learned without a fold: the numbers of the rows of p_0 and of p_1 that are learned
    from, of those that choose the step, and the ratio to start from."""

    train: Sequence[Tensor]
    validation: Sequence[Tensor]
    base: GaussianRatio

    def start(self, scores: np.ndarray) -> Tensor:
        """The ratio to start from at scores (n, D): (n,), float64."""
        return torch.from_numpy(self.base(scores) * self.base.is_used)


class RatioEstimation:
    """The steps of ``log_density_ratio``, for who wants to see them pass: iterate ``run``, then
    ask for the ``result``.

    Gaussians and networks read the asinh scores of the columns, the networks their mean square
    too: a map under which a density ratio stays as it is.
    """

    def __init__(
        self, x0: Any, x1: Any, num_folds: int = 10, steps: int = 2_000, random_state: int = 0
    ) -> None:
        self.num_folds = check_argument(AtLeastTwo, "num_folds", num_folds)
        steps = check_argument(Steps, "steps", steps)
        random_state = check_argument(Seed, "random_state", random_state)
        self.given = Columns.of(x0, "x0"), Columns.of(x1, "x1")
        self.given[0].check_same(self.given[1])
        for columns in self.given:
            columns.check_vary()
        self.groups = [torch.from_numpy(row_groups(columns.values)) for columns in self.given]
        for columns, group in zip(self.given, self.groups, strict=True):
            num = int(group.max()) + 1
            what = f"{columns.what} has {num} rows that differ from each other"
            check_rows(num, what, self.num_folds, 2)
        rows = np.concatenate([columns.values for columns in self.given])
        self.scaling = AsinhScores.fit(rows)
        self.scores = self.scaling(rows)
        generator = make_generator("cpu", random_state, FOLDS)
        cuts = [cut(group, self.num_folds, generator) for group in self.groups]
        self.fold = torch.cat([fold for fold, _ in cuts])
        try:
            self.folds = [self._fold(number, cuts) for number in range(self.num_folds)]
        except ValueError:  # as numpy and scipy say of a singular covariance
            raise UserError(
                "columns of x0 and x1 are of scales too far apart, or determine each other: "
                "rescale them, or leave some out"
            ) from None
        self.generator = make_generator("cpu", random_state, BATCHES)
        dim = rows.shape[1] + 1
        self.classifiers = Classifiers(self.num_folds, dim, steps, self.generator)

    def _fold(self, number: int, cuts: Sequence[tuple[Tensor, Tensor]]) -> Fold:
        parts, first = [], 0
        for fold, order in cuts:
            inside = fold != number
            validates = inside & (order <= order[inside].unique().quantile(VALIDATION_SHARE))
            chosen = inside & ~validates, validates
            parts.append([first + which.nonzero().flatten() for which in chosen])
            first += len(fold)
        train, validation = zip(*parts, strict=True)
        base = best_base(*([self.scores[rows] for rows in part] for part in (train, validation)))
        return Fold(train, validation, base)

    def run(self) -> Iterator[int]:
        """Train; yields the step after every validation."""
        return self.classifiers.train(self._draws_of_step, self._validation())

    def result(self) -> RatioEstimate:
        """The ratio from what is learned so far."""
        values = torch.empty(len(self.fold), dtype=torch.float64)
        for number in range(self.num_folds):
            rows = self.fold == number
            values[rows] = self._log_ratio(number, self.scores[rows])
        distinct = (
            columns.values[np.unique(group, return_index=True)[1]]
            for columns, group in zip(self.given, self.groups, strict=True)
        )
        tests = column_p_values(*distinct)  # copies of a row are one
        of0, of1 = values.split([len(group) for group in self.groups])
        constant = log_mean_exp(of0).item()
        log_ratios = ((part - constant).numpy() for part in (of0, of1))
        return RatioEstimate(*log_ratios, constant, tests, self.groups, self.at, self.given[0])

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """At rows (n, D) the log ratios of all folds before the normaliser, (K, n), and the root
        mean square of what their bases left out as not told from 0, (n,), in nats."""
        scores = self.scaling(x)
        parts = [self._log_ratio(number, scores).numpy() for number in range(self.num_folds)]
        doubts = [(fold.base(scores) * (not fold.base.is_used)) ** 2 for fold in self.folds]
        return np.stack(parts), np.sqrt(np.mean(doubts, 0))

    def _log_ratio(self, number: int, scores: np.ndarray) -> Tensor:
        """Of one fold at scores (n, D), before the normaliser: (n,), float64."""
        residual = self.classifiers.residual(slice(number, number + 1), inputs_of(scores))
        return self.folds[number].start(scores) + residual

    def _draws_of_step(self) -> Draws:
        """As many rows of both samples for each classifier, drawn with replacement."""

        def drawn(rows: Tensor) -> Tensor:
            return rows[torch.randint(len(rows), (BATCH_SIZE,), generator=self.generator)]

        return self._draws([[drawn(rows) for rows in fold.train[::-1]] for fold in self.folds])

    def _validation(self) -> Draws:
        """Rows left aside of both samples, as many of each as there are of the smaller one."""

        def drawn(rows: Tensor, num: int) -> Tensor:
            return rows[torch.randperm(len(rows), generator=self.generator)][:num]

        parts = [fold.validation[::-1] for fold in self.folds]
        return self._draws([[drawn(rows, min(map(len, part))) for rows in part] for part in parts])

    def _draws(self, rows: Sequence[Sequence[Tensor]]) -> Draws:
        """Of row numbers (B,) of p_1 and (B,) of p_0 for each classifier."""
        bases, inputs = [], []
        for fold, part in zip(self.folds, rows, strict=True):
            scores = self.scores[torch.cat(part)]
            bases.append(fold.start(scores).view(2, -1))
            inputs.append(inputs_of(scores).unflatten(0, (2, -1)))
        return Draws.padded(bases, inputs)


def inputs_of(scores: np.ndarray) -> Tensor:
    """What a network reads of scores (n, D): (n, D + 1), float32."""
    radius = (scores**2).mean(1, keepdims=True) - 1
    return torch.from_numpy(np.hstack([scores, radius])).float()


def cut(group: Tensor, num_folds: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The fold (N,) of every row and its place (N,) in an order by chance; rows of the same group
    (N,), copies of one another, have the same."""
    num = int(group.max()) + 1
    place = torch.randperm(num, generator=generator) % num_folds
    return place[group], torch.rand(num, generator=generator)[group]
