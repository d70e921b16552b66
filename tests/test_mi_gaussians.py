"""Gaussian pairs of known mutual information, against torch's distributions."""

import math

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import F64, generator, normal, z_score
from mi_helpers import NUM, PAIR, covariance_of, draws
from scipy import stats
from torch.distributions import MultivariateNormal

from ebm_app.ratios.mi_gaussians import BlockGaussian, CorrelatedNormal, DenseNormal

pytestmark = pytest.mark.usefixtures("float64")


NORMALS = [
    PAIR,
    CorrelatedNormal((), 2, 3),
    CorrelatedNormal((0.9, -0.5), 2, 4),
    CorrelatedNormal((0.2, 0.999, 0.0), 5, 3),
    DenseNormal(0.5, 1, 1),
    DenseNormal(0.3, 2, 4),
    DenseNormal(0.0, 2, 2),
    DenseNormal(0.99, 25, 25),
    BlockGaussian(8),
    BlockGaussian(320),
]
NORMAL_CASES = pytest.mark.parametrize("task", NORMALS, ids=lambda task: repr(task)[:40])


@NORMAL_CASES
def test_normal_information_by_entropies(task):
    sigma, m = torch.from_numpy(covariance_of(task)), task.dim_x
    h_x, h_y, h_xy = (
        MultivariateNormal(torch.zeros(len(part)), part).entropy().item()
        for part in (sigma[:m, :m], sigma[m:, m:], sigma)
    )
    assert task.mutual_information == pytest.approx(h_x + h_y - h_xy, rel=1e-10, abs=1e-12)


@NORMAL_CASES
def test_normal_draws(task):
    """Means 0, the covariance, and every coordinate N(0, 1)."""
    z = np.concatenate(draws(task, 4000), 1)[:, : 2 * min(12, task.dim_x)]
    sigma = covariance_of(task)[: z.shape[1], : z.shape[1]]
    assert abs(z.mean(0) * math.sqrt(len(z))).max() < 4
    # of a product of two coordinates the variance is 1 + correlation^2
    error = (z.T @ z / len(z) - sigma) / np.sqrt((1 + sigma**2) / len(z))
    assert abs(error).max() < 4
    for column in z.T[:4]:
        assert stats.kstest(column, "norm").pvalue > 1e-3


def test_correlated_normal_near_its_ends():
    rho = 1 - 1e-12
    expected = -0.5 * (math.log(1e-12) + math.log1p(rho))
    assert CorrelatedNormal((rho,), 1, 1).mutual_information == pytest.approx(expected, rel=1e-5)
    assert CorrelatedNormal((1e-9,), 1, 1).mutual_information == pytest.approx(0.5e-18)
    x, y = draws(CorrelatedNormal((-rho,), 1, 1), 100)
    np.testing.assert_allclose(x, -y, atol=1e-5)


@pytest.mark.parametrize("dim", [40, 80, 160, 320])
def test_block_gaussian_is_the_task_of_the_paper(dim):
    task = BlockGaussian(dim)
    sigma = task.covariance()
    assert task.rho == pytest.approx(0.795, abs=1e-4)
    assert sigma.dtype == F64 and torch.equal(sigma, sigma.T)
    assert sigma.count_nonzero() == 2 * dim
    assert (sigma.diagonal() == 1).all() and (sigma.diagonal(1)[::2] == task.rho).all()
    assert task.mutual_information == pytest.approx(dim / 4, abs=1e-10)
    assert -0.5 * torch.logdet(sigma).item() == pytest.approx(dim / 4, abs=1e-10)


def test_block_gaussian_log_ratio():
    task = BlockGaussian(40)
    z = task.joint(NUM, generator())
    x, y = task.sample(NUM, generator())
    assert torch.equal(z[:, 0::2], x) and torch.equal(z[:, 1::2], y)
    ratio = task.log_ratio(z)
    data = MultivariateNormal(torch.zeros(40), task.covariance())
    reference = MultivariateNormal(torch.zeros(40), torch.eye(40))
    torch.testing.assert_close(ratio, data.log_prob(z) - reference.log_prob(z))
    assert ratio.shape == (NUM,)
    assert z_score(ratio, task.mutual_information) < 4
    # E_{N(0, I)} ratio = 1; few dimensions keep its spread small
    small = BlockGaussian(2)
    assert z_score(small.log_ratio(normal((NUM, 2))).exp(), 1.0) < 4
    assert task.log_ratio(z.float()).dtype == F64
    for shape in ((5, 39), (40,), (5, 1, 40)):
        with pytest.raises(ValueError, match="shape"):
            task.log_ratio(torch.zeros(shape))


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: CorrelatedNormal((0.5,), 0, 1), "dim_x is 0"),
        (lambda: CorrelatedNormal((0.5,), 1, 1.0), "dim_y is 1.0"),
        (lambda: CorrelatedNormal((1.0,), 1, 1), "correlation is 1.0"),
        (lambda: CorrelatedNormal((0.1, math.nan), 2, 2), "correlation is nan"),
        (lambda: CorrelatedNormal((0.1, 0.1), 3, 1), "2 canonical correlations for 3 and 1"),
        (lambda: DenseNormal(0.5, 1, -1), "dim_y is -1"),
        (lambda: DenseNormal(-0.1, 2, 2), "correlation is -0.1"),
        (lambda: DenseNormal(1.0, 2, 2), "correlation is 1.0"),
        (lambda: BlockGaussian(5), "dim is 5"),
        (lambda: BlockGaussian(0), "dim is 0"),
        (lambda: BlockGaussian(4).joint(-1, generator()), "num is -1"),
    ],
)
def test_bad_arguments(make, reason):
    assert reason in error_of(make)
