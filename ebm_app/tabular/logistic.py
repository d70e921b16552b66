r"""A log ratio by logistic regression, where one side of the pairs is a class.

    T(x, c) = log P(c | x) / P(c),   in nats,

with P(c | x) multinomial logistic, linear in the scores of x or with their products, whose
strength of regularisation and degree are chosen by cross-validation. With a few hundred rows it
knows what a network does not have the rows for.
"""

import warnings

import numpy as np
from torch import Tensor

#: strengths that are tried, parts of the rows, and rows that a class has at least
STRENGTHS, NUM_PARTS, MIN_ROWS = (1e-3, 1e-2, 1e-1, 1.0, 10.0), 5, 5
#: products of more columns than these would be more than the rows
MAX_MULTIPLIED = 15


def class_log_ratios(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, rows: Tensor, random_state: int
) -> np.ndarray | None:
    """T (N, C) at every row and class, learned from some ``rows``; None where these hold too few
    of a class.

    Args:
        scores: (N, d). labels: (N,), integers 0..C - 1. groups: (N,), equal for copies of a row.
    """
    # a second to import, only for this
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    x, y, groups = scores[rows], labels[rows], groups[rows]
    counts = np.bincount(y, minlength=labels.max() + 1)
    if counts.min() < MIN_ROWS:
        return None
    parts = StratifiedGroupKFold(NUM_PARTS, shuffle=True, random_state=random_state % 2**32)
    parts = list(parts.split(x, y, groups))
    if any(len(np.unique(y[train])) < len(counts) for train, _ in parts):
        return None
    products = PolynomialFeatures(include_bias=False)
    model = make_pipeline(products, StandardScaler(), LogisticRegression(max_iter=300))
    choices = {
        "polynomialfeatures__degree": (1, 2) if x.shape[1] <= MAX_MULTIPLIED else (1,),
        "logisticregression__C": STRENGTHS,
    }
    best = GridSearchCV(model, choices, scoring="neg_log_loss", cv=parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a loss that is not least shows
        best.fit(x, y)
    return best.predict_log_proba(scores) - np.log(counts / counts.sum())
