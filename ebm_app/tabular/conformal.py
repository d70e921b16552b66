r"""Prediction intervals of stated coverage where the rows to predict are of another density than
those with known answers (covariate shift).

Let V_i be the scores of rows x_i of p_0 that a model was not trained on, such as |y_i - f(x_i)|,
and w = p_1 / p_0. If y given x is the same in both densities, the score of a new row x of p_1 is
with a probability of at least the level no larger than that quantile of the distribution

    sum_i w(x_i) / s  at V_i,   w(x) / s  at infinity,   s = sum_i w(x_i) + w(x),

so that f(x) -+ the quantile holds y. With an estimated w the coverage is approximate.

Source: Tibshirani, Foygel Barber, Candes and Ramdas 2019, arXiv:1904.06222, corollary 1.
"""

import numpy as np


def weighted_quantile(
    scores: np.ndarray, log_weight: np.ndarray, log_weight_at: np.ndarray, level: float
) -> np.ndarray:
    """The quantile (n,) at every new row, infinite where too much weight is on that row itself.

    Args:
        scores: V (N,). log_weight: log w (N,) at their rows, and ``log_weight_at`` (n,) at new
            ones, all up to one constant. level: between 0 and 1.
    """
    largest = max(log_weight.max(), log_weight_at.max())
    order = np.argsort(scores)
    sums = np.exp(log_weight[order] - largest).cumsum()
    below = level * (sums[-1] + np.exp(log_weight_at - largest))
    return np.append(scores[order], np.inf)[np.searchsorted(sums, below)]
