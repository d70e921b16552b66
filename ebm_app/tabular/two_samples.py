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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import seeded
from ebm_app.tabular.classifier import ClassifierTraining
from ebm_app.tabular.columns import check_finite, check_varies
from ebm_app.tabular.density_ratio import DensityRatio, LeftOut, combined
from ebm_app.tabular.npy import as_columns, check_same_columns, column_labels
from ebm_app.tabular.preprocessing import AsinhScores
from ebm_app.tabular.rank_columns import row_groups
from ebm_app.tabular.ratio_classifiers import RatioClassifiers, split_rows

#: streams of random numbers
FOLDS, BATCHES = range(2)
#: distinct rows that a fold has at least
ROWS_PER_FOLD = 10
#: rows of p_0 and of p_1
Samples = tuple[np.ndarray, np.ndarray]
#: one row of p_0 for each of p_1 in a step
TRAINING = ClassifierTraining(num_shuffles=1)


@dataclass(frozen=True)
class RatioSettings:
    """How much work a ratio is.

    Args:
        num_folds: K, parts of the rows, at least 2.
        num_members: classifiers of every fold, of other weights and batches, that are averaged.
        validation_share: of the rows learned from, by which the step of least loss is found.
        training: of the classifiers; its ``num_shuffles`` are the rows of p_0 for each of p_1.

    Raises:
        UserError: for fewer than 2 folds, no member, or a share outside (0, 1).
    """

    num_folds: int = 10
    num_members: int = 1
    validation_share: float = 0.2
    training: ClassifierTraining = TRAINING

    def __post_init__(self) -> None:
        if self.num_folds < 2 or self.num_members < 1 or not 0 < self.validation_share < 1:
            raise UserError("give at least 2 folds and 1 member, and a share between 0 and 1")


def log_density_ratio(
    x0: Any, x1: Any, settings: RatioSettings = RatioSettings(), random_state: int = 0
) -> DensityRatio:
    """log p_1 / p_0 from independent rows of both densities.

    Args:
        x0, x1: arrays or data frames of numbers, (N0, D) and (N1, D), or (N,) for one column.
        settings: how much work the ratio is.
        random_state: seed of the folds, weights and batches.

    >>> numbers = np.random.default_rng(0)
    >>> ratio = log_density_ratio(numbers.normal(size=300), numbers.normal(size=200))
    >>> ratio.p_value > 0.01, ratio.score_samples(np.zeros(3)).shape
    (True, (3,))

    Raises:
        UserError: for data that are not real numbers, or not of the same columns, NaN or infinite
            values, columns that never vary, and fewer than 10 distinct rows a fold.
    """
    estimation = RatioEstimation(x0, x1, settings, random_state)
    for _ in estimation.run():
        pass
    return estimation.result()


class RatioEstimation:
    """The steps of ``log_density_ratio``, for who wants to see them pass: iterate ``run``, then
    ask for the ``result``."""

    def __init__(
        self, x0: Any, x1: Any, settings: RatioSettings = RatioSettings(), random_state: int = 0
    ) -> None:
        check_same_columns(x0, x1, ("x0", "x1"))
        samples = as_columns(x0, "x0"), as_columns(x1, "x1")
        check_samples(samples, [column_labels(x0, "x0"), column_labels(x1, "x1")])
        self.settings, self.columns = settings, getattr(x0, "columns", None)
        self.groups = tuple(torch.from_numpy(row_groups(x)) for x in samples)
        least = ROWS_PER_FOLD * settings.num_folds
        for name, group in zip(("x0", "x1"), self.groups, strict=True):
            num = int(group.max()) + 1
            if num < least:
                raise UserError(
                    f"{name} has {num} rows that differ from each other: give at least {least}"
                )
        self.scaling = AsinhScores.fit(np.concatenate(samples))
        self.scores = tuple(torch.from_numpy(self.scaling(x)) for x in samples)
        generator = seeded("cpu", random_state, FOLDS)
        self.folds, splits = zip(
            *(
                split_rows(group, settings.num_folds, settings.validation_share, generator)
                for group in self.groups
            ),
            strict=True,
        )
        self.classifiers = RatioClassifiers(
            self.scores,
            list(zip(*splits, strict=True)),
            settings.training,
            seeded("cpu", random_state, BATCHES),
            settings.num_members,
        )

    def run(self) -> Iterator[int]:
        """Train; yields the step after every validation."""
        return self.classifiers.train()

    def result(self) -> DensityRatio:
        """The ratio from what is learned so far."""
        parts = []
        for number in range(self.settings.num_folds):
            rows0, rows1 = ((fold == number).nonzero().flatten() for fold in self.folds)
            of0 = self.classifiers.log_ratio(number, self.scores[0][rows0])
            of1 = self.classifiers.log_ratio(number, self.scores[1][rows1])
            parts.append(LeftOut(rows0, rows1, of0, of1))
        return combined(parts, self.groups, self.classifiers, self.scaling, self.columns)


def check_samples(samples: Samples, names: Sequence[list[str]]) -> None:
    """Check that two samples (N0, D) and (N1, D), whose columns have names, can be compared.

    Raises:
        UserError: see ``log_density_ratio``.
    """
    x0, x1 = samples
    if x0.shape[1] != x1.shape[1]:
        raise UserError(
            f"x0 has {x0.shape[1]} columns and x1 has {x1.shape[1]}: give both the same columns"
        )
    for x, labels, values in zip(samples, names, ("values of x0", "values of x1"), strict=True):
        check_finite(x, labels, values)
    check_varies(np.concatenate(samples), names[0], "both samples")
