"""The Student-t copula: its log ratio against scipy's densities, and its fit."""

import math

import numpy as np
import pytest
import torch
from exact import generator
from scipy import special, stats

from ebm_app.ratios.mi_distributions import StudentT
from ebm_app.ratios.mi_gaussians import CorrelatedNormal
from ebm_app.tabular.preprocessing import normal_scores
from ebm_app.tabular.t_copula import GAUSSIAN, TCopula, t_scores


def correlation(dim, seed=0):
    a = np.random.default_rng(seed).standard_normal((dim, 2 * dim))
    c = a @ a.T
    return c / np.sqrt(np.outer(np.diag(c), np.diag(c)))


@pytest.mark.parametrize("df", [0.5, 1.0, 2.7, 30.0])
@pytest.mark.parametrize("dim_x, dim", [(1, 2), (2, 5), (25, 50)])
def test_the_log_ratio_is_that_of_scipys_densities(df, dim_x, dim):
    r = correlation(dim)
    points = stats.multivariate_t.rvs(shape=r, df=df, size=20, random_state=1)
    found = TCopula(df, r, dim_x).log_ratio(torch.from_numpy(points)).numpy()
    x, y = slice(0, dim_x), slice(dim_x, dim)
    joint = stats.multivariate_t.logpdf(points, shape=r, df=df)
    parts = (stats.multivariate_t.logpdf(points[:, p], shape=r[p, p], df=df) for p in (x, y))
    np.testing.assert_allclose(found, joint - sum(parts), rtol=1e-9, atol=1e-9)


def test_many_degrees_of_freedom_are_the_gaussian_copula():
    r = correlation(4)
    points = np.random.default_rng(2).multivariate_normal(np.zeros(4), r, 50)
    found = TCopula(GAUSSIAN, r, 2).log_ratio(torch.from_numpy(points)).numpy()
    joint = stats.multivariate_normal.logpdf(points, cov=r)
    parts = (
        stats.multivariate_normal.logpdf(points[:, p], cov=r[p, p])
        for p in (slice(0, 2), slice(2, 4))
    )
    np.testing.assert_allclose(found, joint - sum(parts), atol=1e-4)


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
    """Whatever the marginals: the mean log ratio of new rows is the mutual information."""
    task = CorrelatedNormal((0.7,), 2, 1) if df is None else StudentT((0.7,), df, 2, 1)
    x, y = (part.numpy() for part in task.draw(6_000, generator()))
    scores = normal_scores(np.hstack([np.arctan(x), y**3]))
    copula = TCopula.fit(scores, 2)
    assert copula.df > 30 if df is None else abs(math.log(copula.df / df)) < 0.15
    assert abs(copula.correlation[0, 2] - 0.7) < 0.03 and abs(copula.correlation[1, 2]) < 0.04
    values = copula.log_ratio(torch.from_numpy(copula.quantiles(scores)))
    error = values.std().item() / math.sqrt(len(values))
    assert abs(values.mean().item() - task.mutual_information) < 4 * error


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
