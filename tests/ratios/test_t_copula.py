"""The Student-t copula: its log ratio against scipy's densities, and its fit."""

import math

import numpy as np
import pytest
from scipy import special, stats

from ebm_app.tabular.scores import normal_scores
from ebm_app.tabular.t_copula import GAUSSIAN, TCopula, simpler, t_scores


def correlation(dim, seed=0):
    a = np.random.default_rng(seed).standard_normal((dim, 2 * dim))
    c = a @ a.T
    return c / np.sqrt(np.outer(np.diag(c), np.diag(c)))


@pytest.mark.parametrize("df", [0.5, 1.0, 2.7, 30.0])
@pytest.mark.parametrize("dim_x, dim", [(1, 2), (2, 5)])
def test_the_log_ratio_is_that_of_the_densities(df, dim_x, dim):
    """log t(s; R, v) = log Gamma((v + d) / 2) - log Gamma(v / 2) - d/2 log(pi v) - 1/2 log |R|
    - (v + d)/2 log(1 + s^T R^-1 s / v), less the same of either side."""
    r = correlation(dim)
    points = stats.multivariate_t.rvs(shape=r, df=df, size=20, random_state=1)

    def log_density(part):
        shape, s = r[part, part], points[:, part]
        d, squares = len(shape), (s * np.linalg.solve(shape, s.T).T).sum(1)
        gammas = special.gammaln((df + d) / 2) - special.gammaln(df / 2)
        constant = gammas - d / 2 * math.log(math.pi * df) - np.linalg.slogdet(shape)[1] / 2
        return constant - (df + d) / 2 * np.log1p(squares / df)

    x, y = slice(0, dim_x), slice(dim_x, dim)
    expected = log_density(slice(0, dim)) - log_density(x) - log_density(y)
    found = TCopula(df, r, dim_x).log_ratio(points)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert TCopula(df, r, dim_x).log_ratio(points[:1]).shape == (1,)


@pytest.mark.parametrize("df", [0.3, 1.0, 5.0, GAUSSIAN])
def test_quantiles_in_both_tails(df):
    z = np.array([[-6.0, -1.0, 0.0], [0.5, 3.0, 6.0]])
    s = t_scores(z, df)
    np.testing.assert_array_equal(s, -t_scores(-z, df))
    lower = s < 0
    np.testing.assert_allclose(special.stdtr(df, s[lower]), special.ndtr(z[lower]), rtol=1e-6)
    assert s[0, 2] == 0


@pytest.mark.parametrize("df", [1.0, 3.0, None])
def test_a_fit_finds_the_law_of_ranks(df):
    """Whatever the marginals: the mean log ratio is the mutual information by entropies."""
    shape = np.array([[1.0, 0.0, 0.7], [0.0, 1.0, 0.0], [0.7, 0.0, 1.0]])
    law = stats.multivariate_t(shape=shape, df=np.inf if df is None else df, seed=0)
    x, y = np.split(law.rvs(6_000), [2], axis=1)
    scores = normal_scores(np.hstack([np.arctan(x), y**3]))
    entropies = [
        stats.multivariate_normal(cov=part).entropy()
        if df is None
        else stats.multivariate_t(shape=part, df=df).entropy()
        for part in (shape[:2, :2], shape[2:, 2:], shape)
    ]
    information = entropies[0] + entropies[1] - entropies[2]
    copula = TCopula.fit(scores, 2)
    assert copula.df > 30 if df is None else abs(math.log(copula.df / df)) < 0.15
    assert abs(copula.correlation[0, 2] - 0.7) < 0.03 and abs(copula.correlation[1, 2]) < 0.04
    values = copula.log_ratio(t_scores(scores, copula.df))
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - information) < 4 * error


def test_fewer_rows_than_columns_leave_a_positive_definite_correlation():
    scores = normal_scores(np.random.default_rng(3).standard_normal((12, 20)))
    values = TCopula.fit(scores, 10)
    assert np.linalg.eigvalsh(values.correlation).min() > 0


def test_held_out_rows_shrink_what_was_learned_by_chance():
    numbers = np.random.default_rng(4)
    scores = normal_scores(numbers.standard_normal((60, 30)))
    copula = TCopula.fit(scores, 15, np.arange(60) < 20)
    np.testing.assert_array_equal(copula.correlation, np.eye(30))
    line = numbers.standard_normal((2_000, 1))
    scores = normal_scores(line + 0.3 * numbers.standard_normal((2_000, 2)))
    free, held = TCopula.fit(scores, 1), TCopula.fit(scores, 1, np.arange(2_000) < 300)
    np.testing.assert_allclose(free.correlation, held.correlation, atol=5e-3)


def test_held_out_rows_keep_the_canonical_correlations_that_are_not_chance():
    """Two of 25 are: 0.8 each, in 600 rows."""
    z = np.random.default_rng(5).standard_normal((600, 50))
    z[:, 25:27] = 0.8 * z[:, :2] + 0.6 * z[:, 25:27]
    full = np.corrcoef(z.T)
    kept = simpler(full, 25, within=0.0, between=0.0, rank=2)
    np.testing.assert_allclose(kept[:25, :25], full[:25, :25])
    wanted = [*canonical(full, 25)[:2], *[0] * 23]
    np.testing.assert_allclose(canonical(kept, 25), wanted, atol=1e-6)  # roots of rounding errors
    found = canonical(TCopula.fit(normal_scores(z), 25, np.arange(600) < 120).correlation, 25)
    assert found[1] > 0.6 and (found > 1e-6).sum() <= 4


def canonical(r, dim_x):
    """The canonical correlations of a correlation matrix, by its definition: the roots of the
    eigenvalues of R_xx^-1 R_xy R_yy^-1 R_yx."""
    x, y = slice(0, dim_x), slice(dim_x, None)
    product = np.linalg.solve(r[x, x], r[x, y]) @ np.linalg.solve(r[y, y], r[y, x])
    return np.sqrt(np.sort(np.linalg.eigvals(product).real.clip(0))[::-1])
