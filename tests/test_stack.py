"""Networks side by side do what each does alone, and Adam is Adam."""

import pytest
import torch
from exact import F64, generator, normal

from ebm_app.models.time_score import TimeScoreModel
from ebm_app.objectives.regression import Batch, ctsm_v
from ebm_app.paths import LinearVPPath
from ebm_app.ratios.gaussian_net import GaussianStack
from ebm_app.ratios.mlp import MLP
from ebm_app.ratios.nets import MLPStack, StackAdam


def members(num=3, dim=4, out=2):
    nets = []
    for seed in range(num):
        torch.manual_seed(seed)
        nets.append(MLP(dim, out, (16, 8)).double())
    return nets


def parts(num, rows, dim=4):
    return normal((num * rows, dim)), torch.rand(num * rows, generator=generator(1), dtype=F64)


def test_a_stack_is_its_members():
    nets, (x, t) = members(), parts(3, 5)
    together = MLPStack(nets)(x, t)
    alone = [
        net(*part)
        for net, part in zip(nets, zip(x.split(5), t.split(5), strict=True), strict=True)
    ]
    assert torch.allclose(together, torch.cat(alone), rtol=0, atol=1e-14)


def test_training_side_by_side_is_training_alone():
    """Twenty steps of torch's own Adam on each, with different learning rates."""
    nets, rates = members(), (1e-3, 3e-3, 1e-2)
    stack = MLPStack(nets)
    optimizer = StackAdam(stack, torch.tensor(rates, dtype=F64))
    others = [torch.optim.Adam(net.parameters(), lr) for net, lr in zip(nets, rates, strict=True)]
    for step in range(20):
        x, t = normal((15, 4), step), torch.full((15,), 0.3, dtype=F64)
        stack(x, t).square().unflatten(0, (3, -1)).mean((1, 2)).sum().backward()
        optimizer.step(0.5)
        for net, other, part in zip(nets, others, x.split(5), strict=True):
            other.param_groups[0]["lr"] = 0.5 * rates[nets.index(net)]
            other.zero_grad()
            net(part, t[:5]).square().mean().backward()
            other.step()
    assert torch.allclose(stack.weights, MLPStack(nets).weights, rtol=1e-9, atol=1e-12)


def covariance(dim, seed=0):
    a = normal((dim, dim), seed)
    return torch.eye(dim, dtype=F64) * 0.5 + a @ a.T / dim


def with_covariance(sigmas, num_times=None):
    net = GaussianStack(len(sigmas), sigmas[0].shape[0], num_times).double()
    with torch.no_grad():
        net.weights.copy_(
            torch.stack([(s - torch.eye(len(s), dtype=F64)).flatten() for s in sigmas])
        )
    return net


@pytest.mark.parametrize("dim", [2, 6])
def test_the_gaussian_net_is_the_time_derivative_of_the_log_density(dim):
    sigmas = [covariance(dim, 1), covariance(dim, 2)]
    net, x = with_covariance(sigmas), normal((8, dim), 3)
    t = torch.linspace(0.05, 0.99, 8, dtype=F64).requires_grad_()
    expected = []
    for sigma, xs, ts in zip(sigmas, x.split(4), t.split(4), strict=True):
        eye = torch.eye(dim, dtype=F64)
        p = torch.distributions.MultivariateNormal(
            torch.zeros(dim, dtype=F64), eye + ts[:, None, None] ** 2 * (sigma - eye)
        )
        expected.append(p.log_prob(xs))
    (rate,) = torch.autograd.grad(torch.cat(expected).sum(), t)
    assert torch.allclose(net(x, t.detach()).sum(1), rate, rtol=1e-9, atol=1e-10)


def test_its_components_are_the_posterior_means_of_the_conditional_ones():
    """Against Monte Carlo over x1 given x, for one x at one time."""
    dim, time, num = 3, 0.6, 400_000
    sigma, x = covariance(dim, 4), normal((1, dim), 5)
    path, v = LinearVPPath(), 1 - time**2
    precision = torch.linalg.inv(sigma) + time**2 / v * torch.eye(dim, dtype=F64)
    spread = torch.linalg.inv(precision)
    x1 = (time / v * spread @ x[0]) + normal((num, dim), 6) @ torch.linalg.cholesky(spread).T
    t = torch.full((num,), time, dtype=F64)
    eps = (x - time * x1) / v**0.5
    targets = path.conditional_components(path.complete(eps, x1, t, eps))
    error = targets.std(0) / num**0.5
    found = with_covariance([sigma])(x, t[:1])
    assert ((found - targets.mean(0)) / error).abs().max() < 4


def test_shared_times_give_what_each_example_of_its_own_time_gives():
    sigmas = [covariance(5, 1), covariance(5, 2)]
    x = normal((24, 5), 3)
    t = torch.rand(8, generator=generator(4), dtype=F64).repeat_interleave(3)
    shared, own = with_covariance(sigmas, 4)(x, t), with_covariance(sigmas)(x, t)
    assert torch.allclose(shared, own, rtol=1e-12, atol=1e-13)


def test_the_gradient_in_s_is_right_and_vanishes_at_the_truth():
    sigma = covariance(3, 1)
    net = with_covariance([sigma])
    x, t = normal((4, 3)), torch.tensor([0.2, 0.5, 0.7, 0.9], dtype=F64)

    def output(weights):
        return torch.func.functional_call(net, {"weights": weights}, (x, t))

    assert torch.autograd.gradcheck(output, net.weights)
    num, path = 200_000, LinearVPPath()
    x1 = normal((num, 3), 7) @ torch.linalg.cholesky(sigma).T
    times = torch.rand(1000, generator=generator(8), dtype=F64).repeat_interleave(num // 1000)
    net = with_covariance([sigma], 1000)
    model = TimeScoreModel(net, path, 0.01, "raw", "time")
    batch = Batch(path.sample(normal((num, 3), 9), x1, 0.99 * times), torch.ones(num, dtype=F64))
    losses = ctsm_v()(model, path, batch).view(100, -1).mean(1)
    gradients = torch.stack(
        [torch.autograd.grad(loss, net.weights, retain_graph=True)[0].flatten() for loss in losses]
    )
    error = gradients.std(0) / 10
    assert (gradients.mean(0) / error).abs().max() < 4


def test_mutual_information_of_the_matrix():
    sigma = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=F64)
    net = with_covariance([sigma, torch.eye(2, dtype=F64), -torch.eye(2, dtype=F64)])
    found = net.mutual_information()
    assert found[0].item() == pytest.approx(-0.5 * torch.tensor(0.36).log().item())
    assert found[1] == 0 and torch.allclose(net.covariance()[0], sigma)
    indefinite = with_covariance([torch.diag(torch.tensor([1.0, -1.0], dtype=F64))])
    assert indefinite.mutual_information().isnan()
