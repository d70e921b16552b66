r"""Mutual information of paired samples in nats, with a confidence interval.

    I(X; Y) = KL(p(x, y) || p(x) p(y)) = E_{p(x, y)} log p(x, y) / (p(x) p(y)).

The ratio is learned from pairs (x_i, y_i) and from pairs of different rows of the same fold.
Columns are replaced by the normal scores of their ranks, which leaves I unchanged.

Source: Belghazi et al. 2018, arXiv:1801.04062.
"""

from typing import Any

import numpy as np
import scipy
from sklearn.base import clone

from ebm_app.ratios.classifier import ClassifierRatio
from ebm_app.ratios.cross_fit import CrossFitRatio, NumFolds, Sample, assign_folds
from ebm_app.ratios.ctsm import CTSMRatio
from ebm_app.ratios.estimate import RatioEstimate
from ebm_app.ratios.rows import as_rows, check_variation, discrete_columns
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Seed, check_argument

#: Number of pairs with a different row for each row
NUM_SHUFFLES = 12


def mutual_information(
    x: Any, y: Any, ratio: CrossFitRatio | None = None, random_state: int = 0
) -> RatioEstimate:
    """Estimate I(X; Y) in nats from paired rows, which are independent draws.

    If a continuous column of Y is a function of X, I is infinite and the estimate has no meaning.

    Args:
        x, y: arrays or data frames of numbers, (N, dx) and (N, dy), or (N,) for one column; row i
            of both is one draw of (X, Y).
        ratio: estimator of the log ratio. By default ``ClassifierRatio()``, and ``CTSMRatio()`` if
            the classifier finds too much information for a bound in continuous columns.
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
            and fewer than 5 rows per fold.
    """
    check_argument(CrossFitRatio | None, "ratio", ratio)
    first = ClassifierRatio(random_state=random_state) if ratio is None else clone(ratio)
    p0, p1 = independent_and_joint(x, y, first.num_folds, random_state)
    estimate = first.cross_fit(p0, p1, "mutual information")
    if ratio is None and estimate.are_far and not discrete_columns(p1.rows):
        second = CTSMRatio(random_state=random_state)
        estimate = second.cross_fit(p0, p1, "mutual information")
    return estimate


def independent_and_joint(
    x: Any, y: Any, num_folds: int, random_state: int
) -> tuple[Sample, Sample]:
    """Return pairs of different rows, up to ``NUM_SHUFFLES`` per row, and the pairs themselves, as
    normal scores (N, dx + dy)."""
    num_folds = check_argument(NumFolds, "num_folds", num_folds)
    numbers = np.random.default_rng(check_argument(Seed, "random_state", random_state))
    (x, x_columns), (y, y_columns) = as_rows(x, "x"), as_rows(y, "y")
    if len(x) != len(y):
        raise UserError(
            f"x has {len(x)} rows and y has {len(y)}. Pass one row of y for each row of x."
        )
    check_variation(x, x_columns, "x")
    check_variation(y, y_columns, "y")
    pairs, dim = np.concatenate([x, y], 1), x.shape[1]
    fold = assign_folds(pairs, "x with y", num_folds, numbers)
    scores = normal_scores(pairs)
    first, second = different_rows(fold, numbers)
    shuffled = np.concatenate([scores[first, :dim], scores[second, dim:]], 1)
    units = np.stack([first, second], 1)
    joint = Sample(scores, fold, np.arange(len(scores))[:, None])
    return Sample(shuffled, fold[first], units), joint


def normal_scores(x: np.ndarray) -> np.ndarray:
    """Return Phi^-1(r / (N + 1)) of the ranks r = 1..N of each column: (N, d) -> (N, d). Equal
    values share their mean rank."""
    return scipy.special.ndtri(scipy.stats.rankdata(x, axis=0) / (len(x) + 1))


def different_rows(
    fold: np.ndarray, numbers: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of pairs of different rows of one fold."""
    first, second = [], []
    for number in np.unique(fold):
        rows = numbers.permutation(np.flatnonzero(fold == number))
        for shift in numbers.permutation(np.arange(1, len(rows)))[:NUM_SHUFFLES]:
            first.append(rows)
            second.append(np.roll(rows, -shift))
    return np.concatenate(first), np.concatenate(second)
