r"""A log density ratio in closed form to start from: the Student-t copula of ranks.

With z the normal scores of the columns, s = F_v^-1(Phi(z)) their quantiles of the Student-t
distribution of v degrees of freedom, and R their correlation, the joint density of s is taken to
be the multivariate t of dispersion R. Its marginals are of the same kind, so that

    log p(x, y) / (p(x) p(y)) = log t(s; R, v) - log t(s_x; R_xx, v) - log t(s_y; R_yy, v),   nats.

The densities of single columns cancel. v = 1e6 stands for the Gaussian copula.

Sources: Demarta and McNeil, "The t copula and related copulas", Int. Stat. Rev. 73, 2005; the
fixed point for R is that of maximum likelihood, Kent and Tyler, Ann. Statist. 19, 1991.
"""

import math

import numpy as np
import scipy
from scipy.stats import multivariate_t

#: degrees of freedom that are tried, before and after the best of them is refined
LEAST, MOST, GAUSSIAN = 0.3, 50.0, 1e6
FIXED_POINT_STEPS = 12
#: shares of the identity in R; 1 is independence
SHRINKAGES = (0.0, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0)


class TCopula:
    """The copula of given degrees of freedom and correlation.

    Args:
        df: v > 0. correlation: R (D, D), positive definite, float64. dim_x: of the D columns the
            first belong to X.
    """

    def __init__(self, df: float, correlation: np.ndarray, dim_x: int) -> None:
        self.df, self.correlation, self.dim_x = df, correlation, dim_x
        self.joint = multivariate_t(shape=correlation, df=df)
        self.x = multivariate_t(shape=correlation[:dim_x, :dim_x], df=df)
        self.y = multivariate_t(shape=correlation[dim_x:, dim_x:], df=df)

    @classmethod
    def fit(cls, scores: np.ndarray, dim_x: int, held_out: np.ndarray | None = None) -> "TCopula":
        """The most likely copula of normal scores (N, D).

        R is shrunk to (1 - a) R + a I, with the a of ``SHRINKAGES`` by which the rows ``held_out``
        (N,), true or false, are most likely; None leaves it.
        """
        train = scores if held_out is None else scores[~held_out]

        def cost(log_df: float) -> float:
            return -_fitted(train, math.exp(log_df))[0]

        grid = np.linspace(math.log(LEAST), math.log(MOST), 8)
        best = min(grid, key=cost)
        step = grid[1] - grid[0]
        found = scipy.optimize.minimize_scalar(
            cost, bounds=(best - step, best + step), method="bounded", options={"xatol": 0.02}
        )
        df = max((math.exp(found.x), GAUSSIAN), key=lambda df: _fitted(train, df)[0])
        correlation = _fitted(scores, df)[1]
        if held_out is not None:
            of_train, s = _fitted(train, df)[1], t_scores(scores[held_out], df)
            share = max(SHRINKAGES, key=lambda a: _log_density(s, df, _shrunk(of_train, a)).mean())
            correlation = _shrunk(correlation, share)
        return cls(df, correlation, dim_x)

    def quantiles(self, scores: np.ndarray) -> np.ndarray:
        """s (N, D) of normal scores (N, D)."""
        return t_scores(scores, self.df)

    def log_ratio(self, s_x: np.ndarray, s_y: np.ndarray) -> np.ndarray:
        """log p(x, y) / (p(x) p(y)) at the quantiles (N, dim_x) and (N, D - dim_x): (N,), in
        nats."""
        joint = self.joint.logpdf(np.hstack([s_x, s_y]))
        return np.atleast_1d(joint - self.x.logpdf(s_x) - self.y.logpdf(s_y))


def t_scores(scores: np.ndarray, df: float) -> np.ndarray:
    """F_v^-1(Phi(z)): normal scores (N, D) -> (N, D), computed in the lower tail."""
    values, place = np.unique(-np.abs(scores), return_inverse=True)
    quantiles = scipy.special.stdtrit(df, scipy.special.ndtr(values))
    return -np.sign(scores) * quantiles[place.reshape(scores.shape)]


def _fitted(scores: np.ndarray, df: float) -> tuple[float, np.ndarray]:
    """Mean log density of the copula at its most likely R, and R."""
    s = t_scores(scores, df)
    num, dim = s.shape
    # a row more of independent columns keeps R positive definite
    correlation = (num * np.corrcoef(scores.T).reshape(dim, dim) + np.eye(dim)) / (num + 1)
    for _ in range(FIXED_POINT_STEPS if df < GAUSSIAN else 0):
        root = np.linalg.cholesky(correlation)
        squares = (scipy.linalg.solve_triangular(root, s.T, lower=True) ** 2).sum(0)
        weight = (df + dim) / (df + squares)
        moments = (s * weight[:, None]).T @ s / num + np.eye(dim) / num
        scale = 1 / np.sqrt(np.diag(moments))
        correlation = moments * np.outer(scale, scale)
    single = scipy.stats.t.logpdf(s, df).sum(1)
    return float((_log_density(s, df, correlation) - single).mean()), correlation


def _log_density(s: np.ndarray, df: float, correlation: np.ndarray) -> np.ndarray:
    """log t(s; R, v): (N,)."""
    return multivariate_t(shape=correlation, df=df).logpdf(s)


def _shrunk(correlation: np.ndarray, share: float) -> np.ndarray:
    return (1 - share) * correlation + share * np.eye(len(correlation))
