r"""Mutual information of paired samples in nats, with a confidence interval.

    I(X; Y) = KL(p(x, y) || p(x) p(y)) = E_{p(x, y)} log p(x, y) / (p(x) p(y)).

The ratio is learned from pairs (x_i, y_i) and from pairs of different rows of the same fold.
Columns are replaced by the normal scores of their ranks, which leaves I unchanged.

Source: Belghazi et al. 2018, arXiv:1801.04062.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from sklearn.base import clone

from ebm_app.ratios.classifier import ClassifierRatio
from ebm_app.ratios.cross_fit import CrossFitRatio, NumFolds, Sample
from ebm_app.ratios.ctsm import CTSMRatio
from ebm_app.ratios.estimate import RatioEstimate
from ebm_app.ratios.neighbours import NeighbourEstimate, information_of_neighbours
from ebm_app.ratios.rows import as_table, assign_folds, describe_copies
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, check_argument

if TYPE_CHECKING:
    from pandas import DataFrame

#: Number of pairs with a different row for each row
NUM_SHUFFLES = 12
#: Min number of rows with equal values of two columns at which the values count as copies, and its
#: min multiple of the number expected for independent columns, as a fraction of the rows
MIN_COPIES, MIN_COPIES_RATIO = 5, 0.25
#: Max number of pairs of columns tested for functions by nearest neighbours
MAX_PAIRS = 10


def mutual_information(
    x: Any, y: Any, ratio: CrossFitRatio | None = None, random_state: int = 0
) -> RatioEstimate:
    """Estimate I(X; Y) in nats from independent pairs of rows.

    Args:
        x, y: arrays or data frames of numbers, (N, dx) and (N, dy), or (N,) for one column; row i
            of both is one draw of (X, Y). Rows that are copies of each other are one draw.
        ratio: estimator of the log ratio. By default ``ClassifierRatio()``, and ``CTSMRatio()`` if
            the classifier finds too much information for a bound.
        random_state: seed of folds, shuffled pairs and the default estimators.

    >>> numbers = np.random.default_rng(0)
    >>> x = numbers.standard_normal(1_000)
    >>> y = 0.8 * x + 0.6 * numbers.standard_normal(1_000)  # -1/2 log(1 - 0.8^2) = 0.51 nats
    >>> estimate = mutual_information(x, y)
    >>> estimate.interval[0] < 0.51 < estimate.interval[1], estimate.stderr < 0.05
    (True, True)
    >>> estimate.estimator
    'ClassifierRatio()'

    Raises:
        UserError: for values that are not real numbers, missing or infinite; for constant columns
            and fewer than 5 distinct rows per fold; if I is infinite, because a continuous column
            of X is a monotone function of one of Y or equals it in 5 rows, a linear function of X
            equals one of Y, or nearest neighbours show another function of two or three columns.
    """
    if ratio is not None:
        return _estimate(x, y, ratio, random_state)
    estimate = _estimate(x, y, ClassifierRatio(random_state=random_state), random_state)
    if estimate.are_far:
        estimate = _estimate(x, y, CTSMRatio(random_state=random_state), random_state)
    return estimate


def _estimate(x: Any, y: Any, ratio: CrossFitRatio, random_state: int) -> RatioEstimate:
    from pandas import DataFrame  # takes half a second to import

    x, y = as_table(x, "x"), as_table(y, "y")
    p0, p1 = independent_and_joint(x, y, ratio.num_folds, random_state)
    rows, dim = p1.observations(), x.shape[1]
    neighbours = resolved_information(
        DataFrame(rows[:, :dim], columns=x.columns), DataFrame(rows[:, dim:], columns=y.columns)
    )
    warnings = describe_copies(np.concatenate([x, y], 1), p1.units[:, 0], "x with y")
    return clone(ratio).cross_fit(p0, p1, "mutual information", neighbours, warnings)


def resolved_information(x: "DataFrame", y: "DataFrame") -> NeighbourEstimate:
    """Estimate I(X; Y) by nearest neighbours, from normal scores (N, dx) and (N, dy).

    Raises:
        UserError: if the estimate, or that of one of the ``MAX_PAIRS`` most dependent pairs of
            columns, grows with fewer neighbours.
    """
    pairs = [(x[[i]], y[[j]]) for i in x for j in y]
    pairs.sort(key=lambda pair: -dependence(*(part.to_numpy()[:, 0] for part in pair)))
    for parts in (*pairs[:MAX_PAIRS], (x, y)):
        estimate = information_of_neighbours(*(part.to_numpy() for part in parts))
        if not estimate.is_resolved:
            first, second = (", ".join(map(str, part.columns)) for part in parts)
            raise UserError(
                f"Columns {first} of x and {second} of y are functions of each other, so the "
                f"mutual information is infinite, or it is too large for {len(x)} rows. Remove "
                "columns, or use more rows."
            )
    return estimate


def dependence(x: np.ndarray, y: np.ndarray) -> float:
    """Return the larger of Chatterjee's two correlations of columns (N,), without corrections for
    ties: near 1 if one is a smooth function of the other (arXiv:1909.10140)."""
    steps = [
        np.abs(np.diff(scipy.stats.rankdata(b)[np.argsort(a)])).sum() for a, b in ((x, y), (y, x))
    ]
    return 1 - 3 * min(steps) / (len(x) ** 2 - 1)


def independent_and_joint(
    x: Any, y: Any, num_folds: int, random_state: int
) -> tuple[Sample, Sample]:
    """Return pairs of different rows, up to ``NUM_SHUFFLES`` per row, and the pairs themselves, as
    normal scores (N, dx + dy)."""
    import pandas as pd  # takes half a second to import

    num_folds = check_argument(NumFolds, "num_folds", num_folds)
    numbers = np.random.default_rng(check_argument(Seed, "random_state", random_state))
    x, y = as_table(x, "x"), as_table(y, "y")
    if len(x) != len(y):
        raise UserError(
            f"x has {len(x)} rows and y has {len(y)}. Pass one row of y for each row of x."
        )
    pairs, dim = pd.concat([x, y], axis=1), x.shape[1]
    fold, group = assign_folds(pairs, "x with y", num_folds, numbers)
    check_dependence(pairs, dim)
    scores = normal_scores(pairs.to_numpy())
    first, second = different_rows(fold, group, numbers)
    shuffled = np.concatenate([scores[first, :dim], scores[second, dim:]], 1)
    units = np.stack([group[first], group[second]], 1)
    return Sample(shuffled, fold[first], units), Sample(scores, fold, group[:, None])


def normal_scores(x: np.ndarray) -> np.ndarray:
    """Return Phi^-1(r / (N + 1)) of the ranks r = 1..N of each column: (N, d) -> (N, d). Equal
    values share their mean rank."""
    return scipy.special.ndtri(scipy.stats.rankdata(x, axis=0) / (len(x) + 1))


def different_rows(
    fold: np.ndarray, group: np.ndarray, numbers: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of pairs of rows of one fold and of different observations."""
    first, second = [], []
    for number in np.unique(fold):
        rows = numbers.permutation(np.flatnonzero(fold == number))
        for shift in numbers.permutation(np.arange(1, len(rows)))[:NUM_SHUFFLES]:
            first.append(rows)
            second.append(np.roll(rows, -shift))
    first, second = np.concatenate(first), np.concatenate(second)
    is_pair = group[first] != group[second]
    return first[is_pair], second[is_pair]


def check_dependence(pairs: "DataFrame", dim: int) -> None:
    """Raise a UserError if I(X; Y) is infinite by one of three tests of continuous columns: two
    columns are monotone functions of each other, or equal in more rows than by chance, or a
    linear function of X equals one of Y.

    Args:
        pairs: columns of X and Y (N, dx + dy).
        dim: dx.
    """
    values, names = pairs.to_numpy(), list(pairs.columns)
    ranks = np.corrcoef(normal_scores(values).T)
    for i in range(dim):
        if not is_continuous(values[:, i]):
            continue
        for j in range(dim, len(names)):
            num_equal = np.sum(values[:, i] == values[:, j])
            most = MIN_COPIES_RATIO * len(values) * expected_ties(values[:, i], values[:, j])
            are_copies = num_equal >= max(MIN_COPIES, most)
            if abs(ranks[i, j]) > 1 - 1e-9 or are_copies:
                raise UserError(
                    f"Columns '{names[i]}' of x and '{names[j]}' of y are monotone functions of "
                    f"each other or equal in {num_equal} of {len(values)} rows, so the mutual "
                    "information is infinite. Remove one of them."
                )
    if len(values) > 2 * len(names):
        unit = (values - values.mean(0)) / values.std(0)
        bases = [scipy.linalg.orth(part, rcond=1e-10) for part in (unit[:, :dim], unit[:, dim:])]
        axes, correlations, _ = np.linalg.svd(bases[0].T @ bases[1])
        if correlations[0] > 1 - 1e-9 and is_continuous((bases[0] @ axes[:, 0]).round(9)):
            raise UserError(
                "A linear function of the columns of x equals one of the columns of y, so the "
                "mutual information is infinite. Remove a column."
            )


def expected_ties(x: np.ndarray, y: np.ndarray) -> float:
    """Return the number of equal rows of columns (N,) expected if y is permuted."""
    values, index = np.unique(np.concatenate([x, y]), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values)) for part in np.split(index, 2)]
    return float(np.prod(counts, 0).sum() / len(x))


def is_continuous(column: np.ndarray) -> bool:
    """Return whether more than half of the values (N,) are distinct."""
    return 2 * len(np.unique(column)) > len(column)
