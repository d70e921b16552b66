"""The network of a covariance matrix, against closed forms and Monte Carlo."""

import pytest
import torch
from exact import F64, generator, normal

from ebm_app.models.time_score import TimeScoreModel
from ebm_app.objectives.regression import CTSMv
from ebm_app.paths import LinearVPPath
from ebm_app.ratios.gaussian_net import GaussianNet


def covariance(dim, seed=0):
    a = normal((dim, dim), seed)
    return torch.eye(dim, dtype=F64) * 0.5 + a @ a.T / dim


def with_covariance(sigma, num_times=None):
    net = GaussianNet(len(sigma), num_times).double()
    with torch.no_grad():
        net.free.copy_(sigma - torch.eye(len(sigma), dtype=F64))
    return net


@pytest.mark.parametrize("dim", [2, 6])
def test_the_gaussian_net_is_the_time_derivative_of_the_log_density(dim):
    sigma, eye = covariance(dim, 1), torch.eye(dim, dtype=F64)
    net, x = with_covariance(sigma), normal((8, dim), 3)
    t = torch.linspace(0.05, 0.99, 8, dtype=F64).requires_grad_()
    p = torch.distributions.MultivariateNormal(
        torch.zeros(dim, dtype=F64), eye + t[:, None, None] ** 2 * (sigma - eye)
    )
    (rate,) = torch.autograd.grad(p.log_prob(x).sum(), t)
    assert torch.allclose(net(x, t.detach()).sum(1), rate, rtol=1e-9, atol=1e-10)


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


def test_shared_times_give_what_each_example_of_its_own_time_gives():
    sigma, x = covariance(5, 1), normal((12, 5), 3)
    t = torch.rand(4, generator=generator(4), dtype=F64).repeat_interleave(3)
    shared, own = with_covariance(sigma, 4)(x, t), with_covariance(sigma)(x, t)
    assert torch.allclose(shared, own, rtol=1e-12, atol=1e-13)


def test_the_gradient_in_s_is_right_and_vanishes_at_the_truth():
    sigma = covariance(3, 1)
    net = with_covariance(sigma)
    x, t = normal((4, 3)), torch.tensor([0.2, 0.5, 0.7, 0.9], dtype=F64)

    def output(free):
        return torch.func.functional_call(net, {"free": free}, (x, t))

    assert torch.autograd.gradcheck(output, net.free)
    num, path = 50_000, LinearVPPath()
    x1 = normal((num, 3), 7) @ torch.linalg.cholesky(sigma).T
    times = torch.rand(500, generator=generator(8), dtype=F64).repeat_interleave(num // 500)
    net = with_covariance(sigma, 500)
    model = TimeScoreModel(net, path, 0.01, "raw", "time")
    batch = path.sample(normal((num, 3), 9), x1, 0.99 * times), torch.ones(num, dtype=F64)
    losses = CTSMv()(model, path, *batch).view(100, -1).mean(1)
    gradients = torch.stack(
        [torch.autograd.grad(loss, net.free, retain_graph=True)[0].flatten() for loss in losses]
    )
    error = gradients.std(0) / 10
    assert (gradients.mean(0) / error).abs().max() < 4


def test_mutual_information_of_the_matrix():
    sigma = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=F64)
    net, eye = with_covariance(sigma), torch.eye(2, dtype=F64)
    expected = -0.5 * torch.tensor(0.36).log().item()
    assert net.mutual_information().item() == pytest.approx(expected)
    assert torch.allclose(net.covariance(), sigma)
    assert with_covariance(eye).mutual_information() == 0
    indefinite = with_covariance(torch.diag(torch.tensor([1.0, -1.0], dtype=F64)))
    assert indefinite.mutual_information().isnan()
    upper = with_covariance(torch.tensor([[1.0, 1.6], [0.0, 1.0]], dtype=F64))
    assert torch.allclose(upper.covariance(), sigma)  # the symmetric part
