"""Cross-fitted log ratios of two samples.

The rows of both samples are split into K folds. For each fold, a log ratio is learned from the
other folds and evaluated on it. For new rows, the log ratio is the mean over the K learned ones.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from annotated_types import Ge, Le
from sklearn.base import BaseEstimator

from ebm_app.ratios.estimate import (
    HeldOut,
    RatioEstimate,
    bound_estimate,
    check_by_neighbours,
    log_mean_exp,
)
from ebm_app.ratios.neighbours import NeighbourEstimate, divergence_of_neighbours
from ebm_app.ratios.rows import (
    RowRange,
    as_table,
    assign_folds,
    check_columns,
    describe_copies,
    match_copies,
)
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Int, Seed, check_argument

#: Rows (n, D) float64 -> log p_1 / p_0 (n,) float64, in nats
LogRatio = Callable[[np.ndarray], np.ndarray]
NumFolds = Annotated[Int, Ge(3), Le(100)]


class Sample(NamedTuple):
    """Rows of one density (N, D) float64, their folds (N,), and the indices (N, U) of the U
    independent observations in each row."""

    rows: np.ndarray
    fold: np.ndarray
    units: np.ndarray

    def select(self, mask: np.ndarray) -> "Sample":
        """Return the rows where ``mask`` (N,) is true."""
        return Sample(self.rows[mask], self.fold[mask], self.units[mask])

    def observations(self) -> np.ndarray:
        """Return one row (N', D) of each observation."""
        return self.rows[np.sort(np.unique(self.units, axis=0, return_index=True)[1])]


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
        """Learn from independent rows of p_0 (N0, D) and p_1 (N1, D), arrays or data frames.

        Raises:
            UserError: for values that are not real numbers, missing or infinite; for columns that
                are constant or differ between the samples; for fewer than 5 distinct rows a fold.
        """
        num_folds, seed = self._settings()
        numbers = np.random.default_rng(seed)
        tables = {what: as_table(x, what) for what, x in (("x0", x0), ("x1", x1))}
        self.columns_ = tables["x0"].columns
        check_columns(tables["x1"].columns, self.columns_)
        rows = [table.to_numpy() for table in tables.values()]
        folds, groups = zip(
            *(assign_folds(x, what, num_folds, numbers) for what, x in tables.items()), strict=True
        )
        doubts = [
            *describe_copies(rows[0], groups[0], "x0"),
            *describe_copies(rows[1], groups[1], "x1"),
        ]
        self.centre_ = (rows[0].mean(0) + rows[1].mean(0)) / 2
        self.scale_ = np.sqrt((rows[0].var(0) + rows[1].var(0)) / 2)
        folds, groups = match_copies(rows, folds, (groups[0], len(rows[0]) + groups[1]))
        samples = [
            Sample(self._standardise(x), fold, group[:, None])
            for x, fold, group in zip(rows, folds, groups, strict=True)
        ]
        num_shared = np.isin(groups[1], groups[0]).sum()
        if num_shared:
            doubts.append(
                f"{num_shared} rows of x1 are copies of rows of x0, and not independent."
            )
        self.range_ = RowRange.of(np.concatenate([sample.rows for sample in samples]))
        neighbours = divergence_of_neighbours(*(sample.observations() for sample in samples))
        self.estimate_ = self.cross_fit(*samples, "KL(p_1 || p_0)", neighbours, tuple(doubts))
        return self

    def cross_fit(
        self,
        p0: Sample,
        p1: Sample,
        what: str,
        neighbours: NeighbourEstimate,
        doubts: tuple[str, ...],
    ) -> RatioEstimate:
        """Learn a ratio without each fold, and estimate the divergence named ``what``.

        Args:
            neighbours: estimate of the divergence by nearest neighbours.
            doubts: reasons to doubt the rows.
        """
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
        found = HeldOut(held_out, units, training, repr(self), what, neighbours, doubts)
        return check_by_neighbours(self.summarise(found), neighbours)

    def summarise(self, held_out: HeldOut) -> RatioEstimate:
        """Return the estimate from held-out log ratios."""
        return bound_estimate(held_out)

    def log_ratio(self, x: Any) -> np.ndarray:
        """Return log p_1(x) / p_0(x) at rows (n, D): (n,) float64, in nats.

        The mean of the ratio over p_0 is normalised to 1, unless it has too few effective rows.
        A warning counts the rows that are outside the range of those of ``fit``.

        Raises:
            UserError: before ``fit``, if the columns are not those of x0, or if values are missing
                or infinite.
        """
        rows = self._checked(x)
        num_outside = self.range_.is_outside(rows).sum()
        if num_outside:
            warnings.warn(
                f"{num_outside} of {len(rows)} rows are outside the range of the rows of fit, see "
                "is_outside. Their log ratios are extrapolated and may have the wrong sign.",
                stacklevel=2,
            )
        value = np.mean([ratio(rows) for ratio in self.ratios_], 0)
        if self.estimate_.are_far:
            return value
        return value - log_mean_exp(self.estimate_.log_ratio0)

    def is_outside(self, x: Any) -> np.ndarray:
        """Return whether rows (n, D) are outside the range of the rows of ``fit``: (n,) bool.

        A row is outside if its coordinate along a column or a principal axis of the standardised
        rows of both samples is below the smallest or above the largest of their coordinates, by
        more than a tenth of the difference.

        Raises:
            UserError: as ``log_ratio``.
        """
        return self.range_.is_outside(self._checked(x))

    def _check_fitted(self) -> None:
        """Raise a UserError before ``fit``."""
        if "estimate_" not in vars(self):
            raise UserError(f"This {type(self).__name__} is not fitted. Call fit(x0, x1) first.")

    def _checked(self, x: Any) -> np.ndarray:
        """Return standardised rows (n, D) of the columns of ``fit``."""
        self._check_fitted()
        table = as_table(x, "x")
        check_columns(table.columns, self.columns_)
        return self._standardise(table.to_numpy())

    def _settings(self) -> tuple[int, int]:
        """Return the checked number of folds and seed."""
        num_folds = check_argument(NumFolds, "num_folds", self.num_folds)
        return num_folds, check_argument(Seed, "random_state", self.random_state)

    def _standardise(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.centre_) / self.scale_
