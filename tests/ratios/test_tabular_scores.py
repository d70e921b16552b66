"""The maps of columns: increasing, finite and standardised on columns of every kind."""

import numpy as np
import pytest
from conftest import error_of
from scipy import stats

from ebm_app.tabular.scores import AsinhScores, Side, normal_scores, row_groups


def random(seed):
    return np.random.default_rng(seed)


ROWS = 400
COLUMNS = {
    "normal": random(1).normal(3, 2, ROWS),
    "Cauchy": random(2).standard_cauchy(ROWS),
    "uniform, far away": 1e8 + random(3).random(ROWS),
    "counts": random(4).poisson(2, ROWS).astype(float),
    "mostly 0": np.where(np.arange(ROWS) % 10 == 0, random(5).random(ROWS), 0.0),
    "huge": random(6).normal(0, 1, ROWS) * 1e300,
    "tiny": random(6).normal(0, 1, ROWS) * 1e-300,
    "two neighbours of float64": np.where(np.arange(ROWS) % 3 == 0, 1.0, np.nextafter(1.0, 2.0)),
}
COLUMN_CASES = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())


def asinh_scores(x):
    return AsinhScores.fit(x)(x)


@pytest.mark.parametrize("scores", [normal_scores, asinh_scores])
@COLUMN_CASES
def test_each_map_increases_and_keeps_ties(scores, column):
    z = scores(np.stack([column, COLUMNS["normal"]], 1))
    assert z.shape == (ROWS, 2) and z.dtype == np.float64 and np.isfinite(z).all()
    steps, sorted_column = np.diff(z[np.argsort(column), 0]), np.sort(column)
    assert (steps[np.diff(sorted_column) == 0] == 0).all()
    assert (steps[np.diff(sorted_column) > 0] > 0).all()
    np.testing.assert_allclose(z[:, :1], scores(column[:, None]), rtol=1e-12, atol=1e-12)


@COLUMN_CASES
def test_ranks_are_normal_scores_and_asinh_is_standardised(column):
    z = normal_scores(column[:, None])[:, 0]
    expected = stats.norm.ppf(stats.rankdata(column) / (ROWS + 1))
    np.testing.assert_allclose(z, expected, rtol=1e-10, atol=1e-12)
    z = asinh_scores(column[:, None])
    assert abs(z.mean()) < 1e-12 and abs(z.var() - 1) < 1e-12


def test_a_side_as_networks_read_it():
    x = np.stack([random(0).standard_normal(100), random(1).integers(0, 3, 100)], 1)
    side = Side.of(x)
    assert side.discrete == [1] and side.features.shape == (100, 8)
    np.testing.assert_array_equal(side.features[:, 5:].argmax(1), x[:, 1])
    assert (side.features[:, 5:].sum(1) == 1).all()
    assert len(np.unique(side.untied[:, 1])) == 100
    assert np.array_equal(side.untied[:, 0], side.scores[:, 0])
    assert (np.diff(side.scores[np.argsort(side.untied[:, 1]), 1]) >= 0).all()
    np.testing.assert_allclose(side.features[:, 4], (side.scores**2).mean(1) - 1)
    np.testing.assert_allclose(side.features[:, 2:4], asinh_scores(x))
    assert set(np.abs(np.diff(np.unique(side.spaced()[:, 1]))) > 1e5) == {True}
    groups = row_groups(np.array([[0.0, 2.0], [1.0, 2.0], [0.0, 2.0]]))
    assert groups[0] == groups[2] != groups[1]
    assert len(np.unique(row_groups(x[:, 1:]))) == 100


def test_columns_that_determine_each_other():
    x, noise = random(2).standard_normal((2, 300))
    for side in (np.stack([noise, 2 * noise], 1), np.stack([x + 1, noise, x + noise], 1)):
        assert "columns of one side determine each other linearly" in error_of(Side.of, side)


def test_asinh_is_a_logarithm_in_the_tails_and_linear_inside():
    inner = np.linspace(-2, 2, 2001)
    column = np.concatenate([[-1e12, -1e6], inner, [1e6, 1e12]])[:, None]
    z = asinh_scores(column)[:, 0]
    np.testing.assert_allclose(z, -z[::-1], atol=1e-12)
    scale = np.quantile(column, 0.75) - np.quantile(column, 0.25)
    expected = np.log(1e12 / 1e6) / np.arcsinh(0.002 / scale)
    assert (z[-1] - z[-2]) / (z[1003] - z[1002]) == pytest.approx(expected, rel=1e-6)
