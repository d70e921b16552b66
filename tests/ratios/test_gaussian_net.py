"""A time score in closed form with a matrix to learn."""

import math

import pytest
import torch
from exact import F64, normal

from ebm_app.paths import LinearVPPath
from ebm_app.ratios.methods import GaussianNet


def with_covariance(sigma):
    net = GaussianNet(len(sigma)).double()
    with torch.no_grad():
        net.weight.copy_(sigma - torch.eye(len(sigma), dtype=F64))
    return net


def covariance(dim, seed=1):
    a = normal((dim, dim), seed)
    return torch.eye(dim, dtype=F64) * 0.5 + a @ a.T / dim


def test_gaussian_net_is_the_time_derivative():
    dim = 6
    sigma, eye = covariance(dim), torch.eye(dim, dtype=F64)
    net, x = with_covariance(sigma), normal((8, dim), 3)
    t = torch.linspace(0.05, 0.99, 8, dtype=F64).requires_grad_()
    p = torch.distributions.MultivariateNormal(
        torch.zeros(dim, dtype=F64), eye + t[:, None, None] ** 2 * (sigma - eye)
    )
    (rate,) = torch.autograd.grad(p.log_prob(x).sum(), t)
    assert torch.allclose(net(x, t.detach()).sum(1), rate, rtol=1e-9, atol=1e-10)
    one = torch.full((8,), 0.3, dtype=F64)
    shared = torch.tensor([0.3, 0.7], dtype=F64).repeat_interleave(4)
    assert torch.allclose(net(x, one)[:4], net(x, shared)[:4], rtol=1e-12)


def test_terms_are_posterior_means_of_conditional_terms():
    """Against Monte Carlo over x1 given x, for one x at one time."""
    dim, time, num = 3, 0.6, 100_000
    sigma, x = covariance(dim, 4), normal((1, dim), 5)
    path, v = LinearVPPath(), 1 - time**2
    precision = torch.linalg.inv(sigma) + time**2 / v * torch.eye(dim, dtype=F64)
    spread = torch.linalg.inv(precision)
    x1 = (time / v * spread @ x[0]) + normal((num, dim), 6) @ torch.linalg.cholesky(spread).T
    t = torch.full((num,), time, dtype=F64)
    eps = (x - time * x1) / v**0.5
    targets = path.conditional_components(path.sample(eps, x1, t, eps))
    error = targets.std(0) / num**0.5
    found = with_covariance(sigma)(x, t[:1])
    assert ((found - targets.mean(0)) / error).abs().max() < 4


def test_mutual_information_of_the_matrix():
    # the symmetric part of the weight counts
    net = with_covariance(torch.tensor([[1.0, 1.6], [0.0, 1.0]], dtype=F64))
    assert net.mutual_information() == pytest.approx(-0.5 * math.log(0.36))
    indefinite = with_covariance(torch.diag(torch.tensor([1.0, -1.0], dtype=F64)))
    assert math.isnan(indefinite.mutual_information())
