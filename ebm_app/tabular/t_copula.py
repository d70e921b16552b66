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
from itertools import product

import numpy as np
import scipy
from scipy.stats import multivariate_t

#: degrees of freedom that are tried, before and after the best of them is refined
LEAST, MOST, GAUSSIAN = 0.3, 50.0, 1e6
FIXED_POINT_STEPS = 12
#: shares by which correlations are shrunk; 1 leaves none
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

        Where some of the rows are ``held_out`` (N,), true or false, R is the one of ``simpler`` by
        which these are most likely; None leaves it.
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
            ranks = range(min(dim_x, scores.shape[1] - dim_x), -1, -1)

            def likelihood(within: float, between: float, rank: int) -> float:
                shape = simpler(of_train, dim_x, within, between, rank)
                return multivariate_t(shape=shape, df=df).logpdf(s).mean()

            within = max(SHRINKAGES, key=lambda share: likelihood(share, 1.0, 0))
            best = max(product(SHRINKAGES, ranks), key=lambda choice: likelihood(within, *choice))
            correlation = simpler(correlation, dim_x, within, *best)
        return cls(df, correlation, dim_x)

    def log_ratio(self, s: np.ndarray) -> np.ndarray:
        """log p(x, y) / (p(x) p(y)) at the quantiles (N, D): (N,), in nats."""
        of_x, of_y = s[:, : self.dim_x], s[:, self.dim_x :]
        return np.atleast_1d(self.joint.logpdf(s) - self.x.logpdf(of_x) - self.y.logpdf(of_y))


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
    return float((multivariate_t(shape=correlation, df=df).logpdf(s) - single).mean()), correlation


def simpler(
    correlation: np.ndarray, dim_x: int, within: float, between: float, rank: int
) -> np.ndarray:
    """A correlation that says less: those of the columns of a side are shrunk by the share
    ``within``, and of the canonical correlations of both sides the ``rank`` largest are kept,
    shrunk by the share ``between``: what few rows say of the others is chance.

    >>> simpler(np.array([[1.0, 0.8], [0.8, 1.0]]), 1, within=0.1, between=0.5, rank=1).tolist()
    [[1.0, 0.4], [0.4, 1.0]]
    """
    x, y = slice(0, dim_x), slice(dim_x, None)
    roots = [np.linalg.cholesky(correlation[side, side]) for side in (x, y)]
    whitened = np.linalg.solve(roots[0], correlation[x, y])
    left, canonical, right = np.linalg.svd(np.linalg.solve(roots[1], whitened.T).T, False)
    kept = (1 - between) * (left[:, :rank] * canonical[:rank]) @ right[:rank]
    found = (1 - within) * correlation + within * np.eye(len(correlation))
    roots = [np.linalg.cholesky(found[side, side]) for side in (x, y)]
    found[x, y] = roots[0] @ kept @ roots[1].T
    found[y, x] = found[x, y].T
    return found
