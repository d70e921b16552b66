r"""The log ratio of classes by models that need few rows, for networks to start from.

    T(x, c) = log P(c | x) / P(c),   in nats,

by linear or quadratic discriminant analysis with the covariances of Ledoit and Wolf, or by
logistic regression: the one by which rows left aside are most likely, learned again with these.

Source: Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2009, chapter 4.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax


class ClassRatio(NamedTuple):
    """A fitted model of scikit-learn, and the log shares log P(c) (C,) of the classes.

    >>> x, labels = np.random.default_rng(0).standard_normal((4_000, 2)), np.arange(4_000) % 2
    >>> rows = np.split(np.arange(4_000), [3_000])
    >>> ratio = ClassRatio.fit(x + labels[:, None], labels, *rows)
    >>> round(ratio.of_two(np.ones((1, 2))).item(), 1)  # x_1 + x_2 - 1
    1.0
    """

    model: Any
    log_shares: np.ndarray

    @classmethod
    def fit(
        cls, x: np.ndarray, labels: np.ndarray, train: np.ndarray, validation: np.ndarray
    ) -> "ClassRatio":
        """From rows x (N, d), float64, of classes (N,) 0..C - 1, and the numbers of those that are
        learned from and that choose.

        Raises:
            ValueError: where rows are too few, or no covariance can be learned.
        """
        # a second to import, only for this
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as Linear
        from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis as Quadratic
        from sklearn.linear_model import LogisticRegression

        models = [
            Linear(solver="lsqr", shrinkage="auto"),
            Quadratic(solver="eigen", shrinkage="auto"),
            LogisticRegression(),
        ]
        log_shares = np.log(np.bincount(labels[train]) / len(train))
        fitted = [cls(model.fit(x[train], labels[train]), log_shares) for model in models]

        def log_likelihood(ratio: ClassRatio) -> float:
            log_posterior = ratio(x[validation]) + ratio.log_shares
            return np.take_along_axis(log_posterior, labels[validation][:, None], 1).mean()

        rows = np.concatenate([train, validation])
        best = max(fitted, key=log_likelihood).model.fit(x[rows], labels[rows])
        return cls(best, np.log(np.bincount(labels[rows]) / len(rows)))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """T (n, C) at rows (n, d)."""
        scores = self.model.decision_function(x)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], 1)
        return log_softmax(scores, 1) - self.log_shares

    def of_two(self, x: np.ndarray) -> np.ndarray:
        """log p(x | 1) / p(x | 0) (n,) of two classes."""
        values = self(x)
        return values[:, 1] - values[:, 0]
