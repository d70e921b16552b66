"""Student-t pairs and additive uniform noise: their mutual information against entropies, draws
and numerical integrals."""

import math

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import z_score
from mi_helpers import NUM, covariance_of, draws
from scipy import stats

from ebm_app.ratios.mi_distributions import AdditiveUniform, StudentT
from ebm_app.ratios.mi_gaussians import CorrelatedNormal

pytestmark = pytest.mark.usefixtures("float64")


STUDENTS = [
    StudentT((), 1, 1, 1),
    StudentT((0.6,), 3, 1, 1),
    StudentT((0.8, -0.3), 2.5, 2, 3),
    StudentT((0.5,), 7, 5, 2),
    StudentT((), 0.5, 2, 2),
    StudentT((0.9,) * 3, 40, 3, 3),
]
STUDENT_CASES = pytest.mark.parametrize("task", STUDENTS, ids=repr)


def student_logs(task, x, y):
    """log p(x, y) / (p(x) p(y)) by scipy's multivariate t."""
    sigma, m, z = covariance_of(task), task.dim_x, np.concatenate([x, y], 1)

    def log_density(points, shape):
        return stats.multivariate_t.logpdf(points, shape=shape, df=task.df)

    return log_density(z, sigma) - log_density(x, sigma[:m, :m]) - log_density(y, sigma[m:, m:])


@STUDENT_CASES
def test_student_information_by_entropies(task):
    sigma, m = covariance_of(task), task.dim_x
    h_x, h_y, h_xy = (
        stats.multivariate_t.entropy(shape=part, df=task.df)
        for part in (sigma[:m, :m], sigma[m:, m:], sigma)
    )
    assert task.mutual_information == pytest.approx(h_x + h_y - h_xy, rel=1e-8)


@STUDENT_CASES
def test_student_information_by_its_draws(task):
    """Both the draws and the constant: the mean log density ratio is I."""
    logs = student_logs(task, *draws(task))
    assert z_score(torch.from_numpy(logs), task.mutual_information) < 4


@pytest.mark.parametrize("dims", [(1, 1), (3, 2), (50, 50)])
def test_student_becomes_gaussian(dims):
    """c = m n / (2 df^2) (1 + O(1 / df)); far out it is 0 and never below."""
    for df in (1e3, 1e4):
        ratio = StudentT((), df, *dims).mutual_information / (math.prod(dims) / (2 * df**2))
        assert ratio == pytest.approx(1, abs=2 * sum(dims) / df + 1e-2)
    gaussian = CorrelatedNormal((0.5,), *dims).mutual_information
    for df in (1e5, 3e5, 1e6):
        excess = StudentT((0.5,), df, *dims).mutual_information - gaussian
        assert 0 <= excess < 1e-6


@STUDENT_CASES
def test_student_draws(task):
    x, y = draws(task)
    for column in (x[:, 0], y[:, -1]):
        assert stats.kstest(column, stats.t(task.df).cdf).pvalue > 1e-3
    z = np.concatenate([x, y], 1)
    quadratic = (z * np.linalg.solve(covariance_of(task), z.T).T).sum(1)
    radius = stats.f(z.shape[1], task.df)
    assert stats.kstest(quadratic / z.shape[1], radius.cdf).pvalue > 1e-3
    if (
        task.correlations
    ):  # Kendall's tau of an elliptical distribution, with the error of a Gaussian
        tau = stats.kendalltau(x[:, 0], y[:, 0]).statistic
        assert abs(tau - 2 / math.pi * math.asin(task.correlations[0])) < 0.02


# additive uniform noise


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.49, 0.5, 0.51, 0.75, 4.0])
def test_additive_uniform_information_by_integration(noise):
    """E log p(y | x) / p(y) on midpoints of (x, n), p(y) being the length of an overlap."""
    middles = (np.arange(2000) + 0.5) / 2000
    y = middles[:, None] + noise * (2 * middles - 1)
    overlap = np.minimum(y + noise, 1) - np.maximum(y - noise, 0)
    task = AdditiveUniform(noise)
    assert task.mutual_information == pytest.approx(-np.log(overlap).mean(), abs=1e-5)


def test_additive_uniform_draws_and_limits():
    x, y = draws(AdditiveUniform(0.3))
    noise = (y - x) / 0.3
    assert stats.kstest(x[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(noise[:, 0], stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(x[:, 0], noise[:, 0])[0, 1]) < 4 / math.sqrt(NUM)
    below, above = (AdditiveUniform(0.5 + d).mutual_information for d in (-1e-9, 1e-9))
    assert below == pytest.approx(0.5, abs=1e-8) and above == pytest.approx(0.5, abs=1e-8)
    assert AdditiveUniform(1e6).mutual_information == pytest.approx(2.5e-7)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: StudentT((), 0, 1, 1), "0 degrees"),
        (lambda: StudentT((), math.inf, 1, 1), "inf degrees"),
        (lambda: StudentT((2.0,), 3, 1, 1), "correlation is 2.0"),
        (lambda: AdditiveUniform(0.0), "noise is 0.0"),
        (lambda: AdditiveUniform(math.inf), "noise is inf"),
    ],
)
def test_bad_arguments(make, reason):
    assert reason in error_of(make)
