"""Time scores in closed form that networks start from: a matrix to learn, and mixtures along a
path."""

import math

import pytest
import torch
from exact import F64, ExactBridge, ExactModel, generator, normal

from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.ratios.gaussian_net import GaussianNet
from ebm_app.ratios.mixture_base import MixtureBase, ResidualModel, fit_mixture, principal_axes
from ebm_app.ratios.pairs import GaussianMixture


def with_covariance(sigma):
    net = GaussianNet(len(sigma)).double()
    with torch.no_grad():
        net.free.copy_(sigma - torch.eye(len(sigma), dtype=F64))
    return net


def covariance(dim, seed=1):
    a = normal((dim, dim), seed)
    return torch.eye(dim, dtype=F64) * 0.5 + a @ a.T / dim


def test_the_gaussian_net_is_the_time_derivative_of_the_log_density():
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


def test_its_components_are_the_posterior_means_of_the_conditional_ones():
    """Against Monte Carlo over x1 given x, for one x at one time."""
    dim, time, num = 3, 0.6, 100_000
    sigma, x = covariance(dim, 4), normal((1, dim), 5)
    path, v = LinearVPPath(), 1 - time**2
    precision = torch.linalg.inv(sigma) + time**2 / v * torch.eye(dim, dtype=F64)
    spread = torch.linalg.inv(precision)
    x1 = (time / v * spread @ x[0]) + normal((num, dim), 6) @ torch.linalg.cholesky(spread).T
    t = torch.full((num,), time, dtype=F64)
    eps = (x - time * x1) / v**0.5
    targets = path.conditional_components(path.complete(eps, x1, t, eps))
    error = targets.std(0) / num**0.5
    found = with_covariance(sigma)(x, t[:1])
    assert ((found - targets.mean(0)) / error).abs().max() < 4


def test_mutual_information_of_the_matrix():
    sigma = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=F64)
    expected = -0.5 * math.log(0.36)
    assert with_covariance(sigma).mutual_information().item() == pytest.approx(expected)
    indefinite = with_covariance(torch.diag(torch.tensor([1.0, -1.0], dtype=F64)))
    assert indefinite.mutual_information().isnan()
    upper = with_covariance(torch.tensor([[1.0, 1.6], [0.0, 1.0]], dtype=F64))
    assert torch.allclose(upper.covariance(), sigma)  # the symmetric part


def modes(means, std, weights):
    means = torch.tensor(means, dtype=F64)
    log_weight = torch.tensor(weights, dtype=F64).log()
    return GaussianMixture(log_weight, means, torch.full_like(means, std**2))


def cases():
    means, weights, noise = [[-1.0, 2.0], [1.5, 0.0]], [0.3, 0.7], modes([[0.0, 0.0]], 1.0, [1.0])
    for path in (LinearVPPath(), VPPath()):
        exact = ExactModel(path, 1e-3, means, (0.6, 0.6), weights)
        yield path, noise, modes(means, 0.6, weights), exact
    for sigma in (0.0, 1.4):
        path = SchrodingerBridgePath(sigma)
        ends = modes([[0.5, 0.5]], 0.7, [1.0]), modes([[2.0, 2.0]], 1.2, [1.0])
        yield path, *ends, ExactBridge(path, 1e-3, (0.5, 0.7), (2.0, 1.2))


@pytest.mark.parametrize("path, p0, p1, exact", list(cases()))
def test_the_base_of_mixtures_is_the_exact_model(path, p0, p1, exact):
    base, x = MixtureBase(path, p0, p1), 2 * normal((50, 2))
    t = torch.linspace(0.01, 0.99, 50, dtype=F64)
    assert torch.allclose(base(x, t), exact(x, t).components, rtol=1e-9, atol=1e-9)


def test_modes_on_both_sides_sum_to_the_derivative_of_the_marginal():
    """d/dt of the log of the explicit mixture over pairs, by automatic differentiation."""
    path, x = SchrodingerBridgePath(0.9), normal((20, 2))
    left = modes([[-1.0, 0.0], [1.0, 1.0]], 0.5, [0.2, 0.8])
    right = modes([[3.0, 2.0], [2.0, -1.0], [0.0, 4.0]], 0.8, [0.5, 0.3, 0.2])
    t = torch.linspace(0.05, 0.95, 20, dtype=F64).requires_grad_()
    a, logs = t[:, None], []
    for j in range(2):
        for k in range(3):
            m = (1 - a) * left.means[j] + a * right.means[k]
            u = (1 - a) ** 2 * 0.25 + a**2 * 0.64 + 0.81 * a * (1 - a)
            log_mode = -0.5 * ((x - m) ** 2 / u + torch.log(2 * math.pi * u)).sum(1)
            logs.append(left.log_weight[j] + right.log_weight[k] + log_mode)
    (rate,) = torch.autograd.grad(torch.logsumexp(torch.stack(logs), 0).sum(), t)
    base = MixtureBase(path, left, right)
    assert torch.allclose(base(x, t.detach()).sum(1), rate, rtol=1e-9, atol=1e-9)
    net = torch.nn.Module()
    net.forward = lambda x, t: 0.5 * x
    model = ResidualModel(net, path, 1e-3, base)
    expected = rate + 0.5 * x.sum(1)
    assert torch.allclose(model.time_score(x, t.detach()), expected, rtol=1e-9, atol=1e-9)


def test_the_criterion_finds_the_number_of_modes_and_where_they_are():
    g = generator(3)
    which = torch.rand(6000, 1, generator=g) < 0.3
    y = torch.where(which, -2.0, 1.0) + 0.5 * torch.randn(6000, 2, generator=g)
    found = fit_mixture(y)
    assert found.means.shape == (2, 2)
    order = found.means[:, 0].argsort()
    assert torch.allclose(found.means[order, 0], torch.tensor([-2.0, 1.0], dtype=F64), atol=0.05)
    assert found.log_weight.exp()[order[0]].item() == pytest.approx(0.3, abs=0.03)
    assert torch.allclose(found.variances, torch.full((2, 2), 0.25, dtype=F64), atol=0.03)


def test_axes_are_orthogonal_and_lead_along_what_varies_most():
    x0, x1 = normal((5000, 4)), normal((5000, 4), 1) + 4.0
    axes = principal_axes(x0, x1)
    assert torch.allclose(axes.T @ axes, torch.eye(4, dtype=F64), atol=1e-12)
    assert torch.allclose(axes[:, 0].abs(), torch.full((4,), 0.5, dtype=F64), atol=0.02)
