r"""The log ratio of two Gaussians, to start from.

With means mu_i, the covariances of both samples by Ledoit and Wolf, C_i, and their mean C,

    S_i = (1 - s) C + s C_i,   b(x) = log N(x; mu_1, S_1) - log N(x; mu_0, S_0):

linear in x for s = 0, the quadratic one for s = 1.

Source: Friedman, J. Am. Stat. Assoc. 84, 1989 (regularised discriminant analysis).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import multivariate_normal

#: shares s of a sample's own covariance that are tried
SHARES = (0.0, 0.5, 1.0)


class GaussianRatio:
    """b of samples (N0, D) and (N1, D), float64, by the share s. Where held-out rows contradict it
    ``is_used`` is false: b is then taken to be 0, and counts as an error.
    """

    is_used = True

    def __init__(self, x0: np.ndarray, x1: np.ndarray, share: float) -> None:
        # a second to import, only for this
        from sklearn.covariance import ledoit_wolf

        own = [ledoit_wolf(x)[0] for x in (x0, x1)]
        pooled = (own[0] + own[1]) / 2
        self.p0, self.p1 = (
            multivariate_normal(x.mean(0), (1 - share) * pooled + share * covariance)
            for x, covariance in zip((x0, x1), own, strict=True)
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """b (B,) at x (B, D), float64, in nats."""
        return np.atleast_1d(self.p1.logpdf(x) - self.p0.logpdf(x))


def best_base(train: Sequence[np.ndarray], validation: Sequence[np.ndarray]) -> GaussianRatio:
    """Of a ratio for each of ``SHARES`` the one of least logistic loss on draws (N, D) of p_0 and
    p_1, or the first, which is not used, where the loss of b = 0 is less."""
    ratios = [GaussianRatio(*train, share) for share in SHARES]

    def loss(base: GaussianRatio) -> float:
        of0, of1 = (base(x) for x in validation)
        return np.logaddexp(0, of0).mean() + np.logaddexp(0, -of1).mean()

    best = min(ratios, key=loss)
    if loss(best) < 2 * math.log(2):
        return best
    ratios[0].is_used = False
    return ratios[0]
