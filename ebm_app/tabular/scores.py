r"""Columns as the estimators read them: normal scores of ranks, and asinh scores.

Mutual information does not change under an increasing map of a column, and no single map suits all
data: ranks tame heavy tails and hard edges, and hide where the columns of a mixture lie. So a
network reads every column of a pair twice, by its normal score and by its asinh, columns of few
values once more as indicators of each value, and the mean square of the scores of a side: the
scale of the other side may depend on it, or its direction.
"""

from typing import NamedTuple

import numpy as np
import scipy

from ebm_app.utils.errors import UserError

#: a column of at most so many values, each in so many rows on average, is discrete
MAX_VALUES, ROWS_PER_VALUE = 20, 20
#: apart as far as this, two values of a discrete column are no neighbours
FAR = 1e6


def normal_scores(x: np.ndarray) -> np.ndarray:
    r"""Phi^-1(r / (N + 1)) of the ranks r = 1..N of each column: (N, d) -> (N, d).

    Nearly N(0, 1) whatever the column is, and the same for the column under any increasing map.
    Equal values share their mean rank: they stay equal and carry the same information as before.
    """
    return scipy.special.ndtri(scipy.stats.rankdata(x, axis=0) / (len(x) + 1))


class AsinhScores(NamedTuple):
    """asinh((x - median) / s) of each column, to mean 0 and variance 1 over the rows that it is
    fitted to; all parts (d,).

    s is the interquartile range, or where half the values are equal and it is 0, the mean distance
    from the median. Like a logarithm in long tails on both sides, close to linear within s.
    """

    median: np.ndarray
    scale: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def fit(cls, x: np.ndarray) -> "AsinhScores":
        """From rows (N, d), of which no column is constant."""
        lower, median, upper = np.quantile(x, (0.25, 0.5, 0.75), axis=0)
        scale = np.where(upper > lower, upper - lower, np.abs(x - median).mean(0))
        values = np.arcsinh((x - median) / scale)
        return cls(median, scale, values.mean(0), values.std(0))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The scores (N, d) of rows (N, d)."""
        return (np.arcsinh((x - self.median) / self.scale) - self.mean) / self.deviation


class Side(NamedTuple):
    """One side of the pairs: ``scores`` (N, d), the normal scores of the ranks, and ``untied``,
    the same with ties broken at random, which are normal whatever the column is; their ``asinh``
    scores (N, d); ``features`` (N, f), all that a network reads, and the ``discrete`` columns,
    counted from 0."""

    scores: np.ndarray
    untied: np.ndarray
    asinh: np.ndarray
    features: np.ndarray
    discrete: list[int]

    @classmethod
    def of(cls, x: np.ndarray, random_state: int = 0) -> "Side":
        """From the columns (N, d) of X or Y, none of them constant. The seed is of the ties.

        Raises:
            UserError: for columns that others determine linearly.
        """
        correlation = np.corrcoef((x / np.abs(x).max(0)).T).reshape(x.shape[1], -1)
        if not np.linalg.eigvalsh(correlation)[0] > 1e-10:
            raise UserError(
                f"{x.shape[1]} columns of one side determine each other linearly in {len(x)} "
                "rows: leave out those that follow from others"
            )
        scores = normal_scores(x)
        discrete = [number for number, column in enumerate(x.T) if is_discrete(column)]
        indicators = [x[:, [number]] == np.unique(x[:, number]) for number in discrete]
        radius = (scores**2).mean(1, keepdims=True) - 1
        asinh = AsinhScores.fit(x)(x)
        features = np.concatenate([scores, asinh, radius, *indicators], 1)
        chance = np.random.default_rng(random_state).random(x.shape)
        ranks = np.argsort(np.lexsort((chance, x), axis=0), axis=0)
        return cls(scores, normal_scores(ranks), asinh, features, discrete)

    def spaced(self) -> np.ndarray:
        """(N, d), in which nearest neighbours are sought: ``untied``, but of discrete columns the
        scores, equal within a value and far apart between two."""
        columns = self.untied.copy()
        columns[:, self.discrete] = FAR * self.scores[:, self.discrete]
        return columns


def is_discrete(column: np.ndarray) -> bool:
    """Whether a column (N,) has few values, each in many rows.

    >>> is_discrete(np.arange(100) % 4), is_discrete(np.arange(100))
    (True, False)
    """
    num = len(np.unique(column))
    return num <= MAX_VALUES and num * ROWS_PER_VALUE <= len(column)


def row_groups(x: np.ndarray) -> np.ndarray:
    """The number (N,) of the distinct row that each row (N, d) is.

    Copies of a row are one observation: on both sides of a split they would be memorised.
    Where all columns are discrete, rows are equal by nature, and each is its own.
    """
    if all(is_discrete(column) for column in x.T):
        return np.arange(len(x))
    return np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)
