"""Increasing maps of the columns of data, under which mutual information stays the same."""

from typing import NamedTuple

import numpy as np
import scipy

from ebm_app.io.errors import UserError


def standardise(x: np.ndarray) -> np.ndarray:
    """Each column to mean 0 and variance 1 over the rows: (N, d) -> (N, d).

    Raises:
        UserError: for a constant column.
    """
    _check_varies(x)
    z = np.ldexp(x, -_exponent(x))
    for _ in range(2):  # the second time takes the rounding of the first mean
        z = z - z.mean(0)
        z = z / z.std(0)
    return z


def normal_scores(x: np.ndarray) -> np.ndarray:
    r"""Phi^-1(r / (N + 1)) of the ranks r = 1..N of each column: (N, d) -> (N, d).

    Nearly N(0, 1) whatever the column is, and the same for the column under any increasing map.
    Equal values share their mean rank: they stay equal, without a random choice, and carry the
    same information as before. A column with many ties has no density, though, which every
    estimator by density ratios assumes; its mutual information is defined but hard to estimate.

    Raises:
        UserError: for a constant column.
    """
    _check_varies(x)
    return scipy.special.ndtri(scipy.stats.rankdata(x, axis=0) / (len(x) + 1))


class AsinhScores(NamedTuple):
    """asinh((x - median) / s) of each column, to mean 0 and variance 1 over the rows that it is
    fitted to; all parts (d,).

    s is the interquartile range, or where half the values are equal and it is 0, the mean distance
    from the median. Like a logarithm in long tails on both sides, close to linear within s. The
    columns are first divided by powers of two, 2^exponent, which is exact, so that no square
    leaves float64's range.
    """

    exponent: np.ndarray
    median: np.ndarray
    scale: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def fit(cls, x: np.ndarray) -> "AsinhScores":
        """From rows (N, d).

        Raises:
            UserError: for a constant column.
        """
        _check_varies(x)
        exponent = _exponent(x)
        scaled = np.ldexp(x, -exponent)
        lower, median, upper = np.quantile(scaled, (0.25, 0.5, 0.75), axis=0)
        distance = np.abs(scaled - median).mean(0)
        scale = np.where(upper > lower, upper - lower, distance)
        values = np.arcsinh((scaled - median) / scale)
        return cls(exponent, median, scale, values.mean(0), values.std(0))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The scores (N, d) of rows (N, d).

        >>> scores = AsinhScores.fit(np.array([[-3.0], [1.0], [2.0], [100.0]]))
        >>> scores(np.array([[1.5]])).shape
        (1, 1)
        """
        values = np.arcsinh((np.ldexp(x, -self.exponent) - self.median) / self.scale)
        return (values - self.mean) / self.deviation


def is_constant(column: np.ndarray) -> bool:
    """Whether all values (N,) are the same."""
    return bool((column == column[0]).all())


def _check_varies(x: np.ndarray) -> None:
    for i, column in enumerate(x.T):
        if is_constant(column):
            raise UserError(f"column {i + 1} is constant over all rows: leave it out")


def _exponent(x: np.ndarray) -> np.ndarray:
    """e (d,) for which no column over 2^e exceeds 1; division by it is exact."""
    return np.frexp(np.abs(x).max(0))[1]
