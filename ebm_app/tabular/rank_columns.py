r"""Columns of paired data as an estimator of mutual information reads them.

Mutual information does not change under an increasing map of a column, and no single map suits all
data: ranks tame heavy tails and hard edges, and hide where the columns of a mixture lie. So a
network reads every column twice, by its normal score and by its asinh, columns of few values once
more as indicators of each value, and the mean square of the scores of a side: the scale of the
other side may depend on it, or its direction.
"""

from typing import NamedTuple

import numpy as np

from ebm_app.io.errors import UserError
from ebm_app.tabular.preprocessing import AsinhScores, normal_scores, standardise

#: a column of at most so many values, each in so many rows on average, is discrete
MAX_VALUES, ROWS_PER_VALUE = 20, 20
#: apart as far as this, two values of a discrete column are no neighbours
FAR = 1e6


class Columns(NamedTuple):
    """One side of the pairs: ``scores`` (N, d), the normal scores of the ranks, and ``untied``,
    the same with ties broken at random, which are normal whatever the column is; ``features``
    (N, f), all that a network reads, and the ``discrete`` columns, counted from 0."""

    scores: np.ndarray
    untied: np.ndarray
    features: np.ndarray
    discrete: list[int]

    def spaced(self) -> np.ndarray:
        """(N, d), in which nearest neighbours are sought: ``untied``, but of discrete columns the
        scores, equal within a value and far apart between two."""
        columns = self.untied.copy()
        columns[:, self.discrete] = FAR * self.scores[:, self.discrete]
        return columns


def prepared(x: np.ndarray, random_state: int = 0) -> Columns:
    """The columns (N, d) of X or Y; float64. The seed is of the ties.

    >>> numbers = np.random.default_rng(0)
    >>> columns = prepared(np.stack([numbers.normal(size=100), numbers.integers(0, 3, 100)], 1))
    >>> columns.scores.shape, columns.features.shape, columns.discrete
    ((100, 2), (100, 8), [1])

    Raises:
        UserError: for constant columns, and columns that others determine linearly.
    """
    spread = np.linalg.eigvalsh(np.corrcoef(standardise(x).T).reshape(x.shape[1], -1))
    if not spread[0] > 1e-10:
        raise UserError(
            f"{x.shape[1]} columns of one side determine each other linearly in {len(x)} rows: "
            "leave out those that follow from others"
        )
    scores = normal_scores(x)
    discrete, indicators = [], []
    for number, column in enumerate(x.T):
        if is_discrete(column):
            values, place = np.unique(column, return_inverse=True)
            discrete.append(number)
            indicators.append(np.eye(len(values))[place])
    radius = (scores**2).mean(1, keepdims=True) - 1
    features = np.concatenate([scores, AsinhScores.fit(x)(x), radius, *indicators], 1)
    return Columns(scores, normal_scores(_untied_ranks(x, random_state)), features, discrete)


def is_discrete(column: np.ndarray) -> bool:
    """Whether a column (N,) has few values, each in many rows.

    >>> is_discrete(np.arange(100) % 4), is_discrete(np.arange(100))
    (True, False)
    """
    num = len(np.unique(column))
    return num <= MAX_VALUES and num * ROWS_PER_VALUE <= len(column)


def _untied_ranks(x: np.ndarray, random_state: int) -> np.ndarray:
    chance = np.random.default_rng(random_state).random(x.shape)
    order = np.lexsort((chance, x), axis=0)
    return np.argsort(order, axis=0).astype(np.float64)


def row_groups(x: np.ndarray) -> np.ndarray:
    """The number (N,) of the distinct row that each row (N, d) is.

    Copies of a row are one observation: on both sides of a split they would be memorised.
    Where all columns are discrete, rows are equal by nature, and each is its own.

    >>> row_groups(np.array([[0.5], [0.1], [0.5]])).tolist()
    [1, 0, 1]
    """
    if all(is_discrete(column) for column in x.T):
        return np.arange(len(x))
    return np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)
