"""The maps of columns: increasing, finite and standardised on columns of every kind."""

import numpy as np
import pytest
from conftest import error_of
from scipy import stats

from ebm_app.tabular.preprocessing import AsinhScores, normal_scores, standardise


def random(seed):
    return np.random.default_rng(seed)


ROWS = 400
COLUMNS = {
    "normal": random(1).normal(3, 2, ROWS),
    "Cauchy": random(2).standard_cauchy(ROWS),
    "uniform, far away": 1e8 + random(3).random(ROWS),
    "counts": random(4).poisson(2, ROWS).astype(float),
    "mostly 0": np.where(np.arange(ROWS) % 10 == 0, random(5).random(ROWS), 0.0),
    "huge": random(6).normal(0, 1, ROWS) * 1e307,
    "tiny": random(6).normal(0, 1, ROWS) * 1e-300,
    "two neighbours of float64": np.where(np.arange(ROWS) % 3 == 0, 1.0, np.nextafter(1.0, 2.0)),
}
COLUMN_CASES = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())


def asinh_scores(x):
    return AsinhScores.fit(x)(x)


MAPS = pytest.mark.parametrize("scores", [standardise, normal_scores, asinh_scores])


@MAPS
@COLUMN_CASES
def test_each_map_increases_and_keeps_ties(scores, column):
    z = scores(np.stack([column, COLUMNS["normal"]], 1))
    assert z.shape == (ROWS, 2) and z.dtype == np.float64 and np.isfinite(z).all()
    mapped = z[np.argsort(column), 0]
    steps, sorted_column = np.diff(mapped), np.sort(column)
    assert (steps[np.diff(sorted_column) == 0] == 0).all()
    assert (steps[np.diff(sorted_column) > 0] > 0).all()
    alone = scores(column[:, None])
    np.testing.assert_allclose(z[:, :1], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scores", [standardise, asinh_scores])
@COLUMN_CASES
def test_standardised_moments(scores, column):
    z = scores(column[:, None])
    assert abs(z.mean()) < 1e-12 and abs(z.var() - 1) < 1e-12


@COLUMN_CASES
def test_standardising_is_linear(column):
    z = standardise(column[:, None])[:, 0]
    slope = (z.max() - z.min()) / (column.max() / 4 - column.min() / 4)
    np.testing.assert_allclose(z - z[0], slope * (column / 4 - column[0] / 4), atol=1e-12)


@MAPS
def test_scale_and_place_of_a_column_do_not_matter(scores):
    column = COLUMNS["Cauchy"][:, None]
    expected = scores(column)
    np.testing.assert_allclose(scores(1e3 * column - 7), expected, atol=1e-9)


@COLUMN_CASES
def test_ranks_are_normal_scores(column):
    z = normal_scores(column[:, None])[:, 0]
    expected = stats.norm.ppf(stats.rankdata(column) / (ROWS + 1))
    np.testing.assert_allclose(z, expected, rtol=1e-10, atol=1e-12)
    if len(np.unique(column)) == ROWS:
        assert stats.kstest(z, "norm").statistic < 1 / ROWS
        assert abs(z.mean()) < 1e-12 and 0.96 < z.var() < 1


def test_asinh_is_a_logarithm_in_the_tails_and_linear_inside():
    inner = np.linspace(-2, 2, 2001)
    column = np.concatenate([[-1e12, -1e6], inner, [1e6, 1e12]])[:, None]
    z = asinh_scores(column)[:, 0]
    np.testing.assert_allclose(z, -z[::-1], atol=1e-12)
    scale = np.quantile(column, 0.75) - np.quantile(column, 0.25)
    expected = np.log(1e12 / 1e6) / np.arcsinh(0.002 / scale)
    assert (z[-1] - z[-2]) / (z[1003] - z[1002]) == pytest.approx(expected, rel=1e-6)


@MAPS
def test_a_constant_column_has_no_scores(scores):
    values = np.stack([COLUMNS["normal"], np.full(ROWS, 0.1)], 1)
    assert "column 2 is constant" in error_of(scores, values)
