"""Cross-fitted log ratios of two samples.

The rows of both samples are split into K folds. For each fold, a log ratio is learned from the
other folds and evaluated on it. For new rows, the log ratio is the mean over the K learned ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from annotated_types import Ge, Le
from sklearn.base import BaseEstimator

from ebm_app.ratios.estimate import HeldOut, RatioEstimate, bound_estimate, log_mean_exp
from ebm_app.ratios.rows import as_rows, check_columns, check_variation
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Int, Seed, check_argument

#: Rows (n, D) float64 -> log p_1 / p_0 (n,) float64, in nats
LogRatio = Callable[[np.ndarray], np.ndarray]
NumFolds = Annotated[Int, Ge(3), Le(100)]
#: Max share of the rows of p_1 outside the range of the rows of p_0 in a column; more give a
#: warning
MAX_OUTSIDE = 0.02
#: Min rows per fold
ROWS_PER_FOLD = 5


class Sample(NamedTuple):
    """Rows of one density (N, D) float64, their folds (N,), and the indices (N, U) of the U
    independent draws in each row."""

    rows: np.ndarray
    fold: np.ndarray
    units: np.ndarray

    def select(self, mask: np.ndarray) -> "Sample":
        """Return the rows where ``mask`` (N,) is true."""
        return Sample(self.rows[mask], self.fold[mask], self.units[mask])


class CrossFitRatio(BaseEstimator, ABC):
    """Estimator of log p_1 / p_0 from two samples; a subclass learns the ratio of each fold.

    Its parameters are those of scikit-learn: stored unchanged, and checked by ``fit``.

    Attributes:
        estimate_: ``RatioEstimate`` of KL(p_1 || p_0), after ``fit``.
    """

    num_folds: int
    random_state: int

    @abstractmethod
    def learn(self, p0: Sample, p1: Sample, seed: int) -> LogRatio:
        """Learn the log ratio from training rows, whose columns are standardised.

        The folds of the rows are numbered from 1, so that a learner can hold out whole folds.
        """

    def fit(self, x0: Any, x1: Any) -> Self:
        """Learn from samples of p_0 (N0, D) and p_1 (N1, D), arrays or data frames, whose rows are
        independent draws.

        Raises:
            UserError: for values that are not real numbers, missing or infinite; for columns that
                are constant or differ between the samples; for fewer than 5 rows a fold.
        """
        num_folds, seed = self._settings()
        numbers = np.random.default_rng(seed)
        rows, columns = zip(as_rows(x0, "x0"), as_rows(x1, "x1"), strict=True)
        self.columns_ = columns[0]
        check_columns(columns[1], self.columns_)
        folds = []
        for what, x in zip(("x0", "x1"), rows, strict=True):
            check_variation(x, self.columns_, what)
            folds.append(assign_folds(x, what, num_folds, numbers))
        self.centre_ = (rows[0].mean(0) + rows[1].mean(0)) / 2
        self.scale_ = np.sqrt((rows[0].var(0) + rows[1].var(0)) / 2)
        for name, scale in zip(self.columns_, self.scale_, strict=True):
            if not 0 < scale < np.inf:
                raise UserError(
                    f"The variance of column {name} is too small or too large for float64. "
                    "Multiply the column by a constant."
                )
        units = np.split(np.arange(sum(map(len, rows)))[:, None], [len(rows[0])])
        samples = [
            Sample(self._standardise(x), fold, unit)
            for x, fold, unit in zip(rows, folds, units, strict=True)
        ]
        estimate = self.cross_fit(*samples, "KL(p_1 || p_0)")
        warnings = (*estimate.warnings, *self._range_warnings(*rows))
        self.estimate_ = replace(estimate, warnings=warnings)
        return self

    def cross_fit(self, p0: Sample, p1: Sample, what: str) -> RatioEstimate:
        """Learn a ratio without each fold, and estimate the divergence named ``what``."""
        samples, (num_folds, seed) = (p0, p1), self._settings()
        held_out = tuple(np.zeros(len(sample.rows)) for sample in samples)
        training, self.ratios_ = [], []
        for fold in range(num_folds):
            folds = [(sample.fold - fold) % num_folds for sample in samples]
            rest = [
                sample._replace(fold=number).select(number > 0)
                for sample, number in zip(samples, folds, strict=True)
            ]
            ratio = self.learn(*rest, (seed * num_folds + fold) % 2**63)
            for sample, number, out in zip(samples, folds, held_out, strict=True):
                out[number == 0] = ratio(sample.rows[number == 0])
            training.append(tuple(ratio(sample.rows) for sample in rest))
            self.ratios_.append(ratio)
        units = p0.units, p1.units
        return self.summarise(HeldOut(held_out, units, training, repr(self), what))

    def summarise(self, held_out: HeldOut) -> RatioEstimate:
        """Return the estimate from held-out log ratios."""
        return bound_estimate(held_out)

    def log_ratio(self, x: Any) -> np.ndarray:
        """Return log p_1(x) / p_0(x) at rows (n, D): (n,) float64, in nats.

        The mean of the ratio over p_0 is normalised to 1, unless it has too few effective rows.
        Far from the rows of ``fit`` the ratio is extrapolated and may have the wrong sign.

        Raises:
            UserError: before ``fit``, if the columns are not those of x0, if values are missing or
                infinite, or if the log ratio is not finite.
        """
        rows = self._checked(x)
        value = np.mean([ratio(rows) for ratio in self.ratios_], 0)
        if not np.isfinite(value).all():
            raise UserError(
                f"The log ratio of row {np.isfinite(value).argmin()} of x is not finite. Remove "
                "rows that are far from both samples."
            )
        if self.estimate_.are_far:
            return value
        return value - log_mean_exp(self.estimate_.log_ratio0)

    def _range_warnings(self, x0: np.ndarray, x1: np.ndarray) -> list[str]:
        """Return a warning if many rows of p_1 (N1, D) are outside the range of the rows of p_0
        (N0, D) in a column."""
        outside = ((x1 < x0.min(0)) | (x1 > x0.max(0))).mean(0)
        if outside.max() <= MAX_OUTSIDE:
            return []
        return [
            f"{outside.max():.1%} of the rows of p_1 are outside the range of the rows of p_0 in "
            f"column {self.columns_[outside.argmax()]}. The log ratio is extrapolated there, and "
            "the divergence may be infinite."
        ]

    def _check_fitted(self) -> None:
        """Raise a UserError before ``fit``."""
        if "estimate_" not in vars(self):
            raise UserError(f"This {type(self).__name__} is not fitted. Call fit(x0, x1) first.")

    def _checked(self, x: Any) -> np.ndarray:
        """Return standardised rows (n, D) of the columns of ``fit``."""
        self._check_fitted()
        rows, columns = as_rows(x, "x")
        check_columns(columns, self.columns_)
        return self._standardise(rows)

    def _settings(self) -> tuple[int, int]:
        """Return the checked number of folds and seed."""
        num_folds = check_argument(NumFolds, "num_folds", self.num_folds)
        return num_folds, check_argument(Seed, "random_state", self.random_state)

    def _standardise(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.centre_) / self.scale_


def assign_folds(
    rows: np.ndarray, what: str, num_folds: int, numbers: np.random.Generator
) -> np.ndarray:
    """Return the fold (N,) of each row, which depends on its rank among the rows (N, d).

    Raises:
        UserError: if a fold has fewer than ``ROWS_PER_FOLD`` rows.
    """
    if len(rows) < ROWS_PER_FOLD * num_folds:
        raise UserError(
            f"{what} has {len(rows)} rows. Use at least {ROWS_PER_FOLD} for each of {num_folds} "
            "folds."
        )
    rank = np.lexsort(rows.T[::-1]).argsort()
    return (numbers.permutation(len(rows)) % num_folds)[rank]
