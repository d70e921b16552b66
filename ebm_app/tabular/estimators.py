"""Density ratios and mutual information in the manner of scikit-learn: parameters at the making,
``fit``, and what is found under names with an underscore at the end."""

from typing import Any, Self

import numpy as np
from numpy.random import RandomState
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ebm_app.tabular.columns import Columns
from ebm_app.tabular.mutual_information import mutual_information
from ebm_app.tabular.two_samples import log_density_ratio
from ebm_app.utils.errors import UserError


class DensityRatio(BaseEstimator):
    """log p_1(x) / p_0(x), in nats, as ``log_density_ratio``.

    Args:
        num_folds: K, parts of the rows. steps: of the classifiers, at most.
        random_state: a seed, a generator of numpy's, or None.

    Attributes:
        estimate_: the ``RatioEstimate``, with errors, tests, and warnings.
        classes_: the two values of y, those of p_0 and of p_1.

    >>> x, sample = np.random.default_rng(0).standard_normal((400, 1)), np.arange(400) % 2
    >>> ratio = DensityRatio(steps=200).fit(x + 2 * sample[:, None], sample)  # 2 x - 2
    >>> bool(ratio.score_samples([[0.0]]) < 0 < ratio.score_samples([[2.0]]))
    True
    """

    def __init__(
        self, num_folds: int = 10, steps: int = 2_000, random_state: int | RandomState | None = 0
    ) -> None:
        self.num_folds, self.steps, self.random_state = num_folds, steps, random_state

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803, as scikit-learn calls it
        """Learn from rows X (N, D) of both samples, y (N,) telling which each is of.

        Raises:
            UserError: as ``log_density_ratio``, and for a y that does not hold two values.
            ValueError: for X and y of other shapes or kinds, as scikit-learn says it.
        """
        seed = seed_of(self.random_state)
        X, y = checked(self, X, y, ensure_min_samples=2)  # noqa: N806
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise UserError(
                f"y holds {len(self.classes_)} classes: give two, rows of p_0 and rows of p_1"
            )
        samples = (X[y == value] for value in self.classes_)
        self.estimate_ = log_density_ratio(*samples, self.num_folds, self.steps, seed)
        return self

    def score_samples(
        self,
        X: Any,
        return_std: bool = False,  # noqa: N803
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The log ratio (n,) at rows (n, D), and on request its standard error (n,)."""
        check_is_fitted(self)
        return self.estimate_.score_samples(checked(self, X, reset=False), return_std)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """The mean log likelihood (nats) of which sample every row is of, at equal shares."""
        ratio = np.where(np.asarray(y) == self.classes_[1], 1, -1) * self.score_samples(X)
        return float(-np.logaddexp(0, -ratio).mean())

    def __sklearn_tags__(self) -> Tags:
        tags = tagged(super().__sklearn_tags__())
        tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags


class MutualInformation(BaseEstimator):
    """I(X; Y), in nats, as ``mutual_information``.

    Args:
        num_folds: K, parts of the rows. steps: of the classifiers, at most.
        random_state: a seed, a generator of numpy's, or None.

    Attributes:
        value_, stderr_, interval_: the estimate, its error, and 95 percent.
        log_ratio_: log p(x, y) / (p(x) p(y)) at every row, by a ratio learned without it, (N,).
        estimate_: the ``InformationEstimate``, with bounds and warnings.

    >>> x = np.random.default_rng(0).standard_normal((400, 1))
    >>> found = MutualInformation(steps=200).fit(x, x[:, 0] > 0)  # log 2 nats
    >>> bool(abs(found.value_ - np.log(2)) < 0.2)
    True
    """

    def __init__(
        self, num_folds: int = 3, steps: int = 2_000, random_state: int | RandomState | None = 0
    ) -> None:
        self.num_folds, self.steps, self.random_state = num_folds, steps, random_state

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Estimate from rows X (N, dx) and y (N,) or (N, dy).

        Raises:
            UserError: as ``mutual_information``.
            ValueError: for X and y of other shapes or kinds, as scikit-learn says it.
        """
        seed = seed_of(self.random_state)
        X, y = checked(self, X, y, ensure_min_samples=2, multi_output=True)  # noqa: N806
        self.estimate_ = mutual_information(X, y, self.num_folds, self.steps, seed)
        self.value_, self.stderr_ = self.estimate_.value, self.estimate_.stderr
        self.interval_, self.log_ratio_ = self.estimate_.interval, self.estimate_.log_ratio
        return self

    def __sklearn_tags__(self) -> Tags:
        return tagged(super().__sklearn_tags__())


def checked(estimator: BaseEstimator, *parts: Any, **options: Any) -> Any:
    """X, or X and y, as scikit-learn takes them; columns of a table that are no numbers are
    named."""
    for part in parts:
        if hasattr(part, "columns"):
            Columns.of(part, "the table")
    return validate_data(estimator, *parts, **options)


def tagged(tags: Tags) -> Tags:
    """With what a caller must know: y is needed."""
    tags.target_tags.required = True
    return tags


def seed_of(random_state: int | RandomState | None) -> int:
    """A seed from what scikit-learn takes for one."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
