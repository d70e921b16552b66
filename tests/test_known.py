"""Distributions of known mutual information, against scipy's densities and integrals."""

import numpy as np
import pytest
import torch
from exact import generator, z_score
from scipy import stats

from ebm_app.tabular.known import EXAMPLES, correlated_normal, discrete_uniform

NUM = 20_000


def draws(task, num=NUM, seed=0):
    return [part.numpy() for part in task.draw(num, generator(seed))]


def dispersion(correlations, m, n):
    sigma = np.eye(m + n)
    for i, rho in enumerate(correlations):
        sigma[i, m + i] = sigma[m + i, i] = rho
    return sigma


@pytest.mark.parametrize("case", [((0.9, -0.5), 2, 4), ((0.2, 0.999, 0.0), 5, 3)])
def test_normal_information_and_draws(case):
    """The mean of the log density ratio by scipy is I, and the draws are distributed as there."""
    task, sigma = correlated_normal(*case), dispersion(*case)
    x, y = draws(task)
    z, m = np.hstack([x, y]), case[1]
    assert (x.shape, y.shape) == ((NUM, m), (NUM, case[2])) and x.dtype == y.dtype == np.float64
    sides = slice(0, m), slice(m, None)
    logs = stats.multivariate_normal.logpdf(z, cov=sigma)
    for side in sides:
        logs = logs - stats.multivariate_normal.logpdf(z[:, side], cov=sigma[side, side])
    assert z_score(torch.from_numpy(logs), task.mutual_information) < 4
    quadratic = (z * np.linalg.solve(sigma, z.T).T).sum(1)
    assert stats.kstest(quadratic, stats.chi2(len(sigma)).cdf).pvalue > 1e-3
    entropy = stats.multivariate_normal.entropy
    h_x, h_y, h = (entropy(None, sigma[s, s]) for s in (*sides, slice(None)))
    assert task.mutual_information == pytest.approx(h_x + h_y - h, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("num", [1, 2, 5])
def test_discrete_uniform_by_its_densities(num):
    task = discrete_uniform(num)
    x, y = (part[:, 0] for part in draws(task))
    density = sum(((y >= k) & (y <= k + 2)) / (2 * num) for k in range(num))
    logs = np.log(0.5 / density)
    assert z_score(torch.from_numpy(logs), task.mutual_information) < 4 or num == 1
    assert logs.mean() == pytest.approx(task.mutual_information, abs=0.02)
    assert stats.kstest((y - x) / 2, "uniform").pvalue > 1e-3


def test_examples_have_the_columns_of_their_names():
    sides = {name: [part.shape for part in draws(task, 7)] for name, task in EXAMPLES.items()}
    assert sides.pop("discrete_uniform_4") == [(7, 1), (7, 1)]
    for name, found in sides.items():
        assert found == [(7, int(size)) for size in name.partition("_")[2].split("x")]
