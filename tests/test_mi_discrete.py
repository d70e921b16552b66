"""A discrete X and a continuous Y: mutual information by sums and integrals, and draws."""

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import z_score
from mi_helpers import NUM, draws
from scipy import stats

from ebm_app.ratios.mi_discrete import DiscreteUniform

pytestmark = pytest.mark.usefixtures("float64")


def density(y, m):
    """p(y), the sum over the m values of their weight times U(y; x, x + 2)."""
    values = np.arange(m)
    return ((y[..., None] >= values) & (y[..., None] <= values + 2)).sum(-1) / (2 * m)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 10])
def test_information_by_sums_and_integrals(m):
    """sum_x p(x) int p(y | x) log p(y | x) / p(y) dy on midpoints: p is constant between them."""
    y = np.arange(m)[:, None] + (np.arange(100) + 0.5) / 50
    logs = np.log(0.5 / density(y, m))
    assert DiscreteUniform(m).mutual_information == pytest.approx(logs.mean(), abs=1e-14)


def test_draws():
    task = DiscreteUniform(4)
    x, y = draws(task)
    values, counts = np.unique(x, return_counts=True)
    assert np.array_equal(values, range(4)) and stats.chisquare(counts).pvalue > 1e-3
    for value in values:
        assert stats.kstest((y - x)[x == value], stats.uniform(0, 2).cdf).pvalue > 1e-3
    logs = np.log(0.5 / density(y[:, 0], 4))
    assert len(logs) == NUM
    assert z_score(torch.from_numpy(logs), task.mutual_information) < 4


@pytest.mark.parametrize("number", [0, 2.5])
def test_bad_arguments(number):
    assert f"num_values is {number}" in error_of(lambda: DiscreteUniform(number))
