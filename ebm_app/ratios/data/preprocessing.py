"""Increasing maps of the columns of data, under which mutual information stays the same."""

import numpy as np
import scipy

from ebm_app.errors import UserError


def standardise(x: np.ndarray) -> np.ndarray:
    """Each column to mean 0 and variance 1 over the rows: (N, d) -> (N, d).

    Raises:
        UserError: for a constant column.
    """
    _check_varies(x)
    z = _scaled(x)
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


def asinh_scores(x: np.ndarray) -> np.ndarray:
    """asinh((x - median) / s) of each column, then ``standardise``: (N, d) -> (N, d).

    s is the interquartile range, or where half the values are equal and it is 0, the mean distance
    from the median. Like a logarithm in long tails on both sides, close to linear within s.

    Raises:
        UserError: for a constant column.
    """
    _check_varies(x)
    x = _scaled(x)
    lower, median, upper = np.quantile(x, (0.25, 0.5, 0.75), axis=0)
    distance = np.abs(x - median).mean(0)
    return standardise(np.arcsinh((x - median) / np.where(upper > lower, upper - lower, distance)))


def is_constant(column: np.ndarray) -> bool:
    """Whether all values (N,) are the same."""
    return bool((column == column[0]).all())


def _check_varies(x: np.ndarray) -> None:
    for i, column in enumerate(x.T):
        if is_constant(column):
            raise UserError(f"column {i + 1} is constant over all rows: leave it out")


def _scaled(x: np.ndarray) -> np.ndarray:
    """Columns over powers of two, which is exact, so that no square leaves float64's range."""
    return np.ldexp(x, -np.frexp(np.abs(x).max(0))[1])
