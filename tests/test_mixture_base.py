"""The closed-form base: exact components, and mixtures found where they are."""

import math

import pytest
import torch
from exact import F64, ExactBridge, ExactModel, generator, normal

from ebm_app.io.errors import UserError
from ebm_app.models.time_score import ModelOutput
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.ratios.mixture_base import (
    MixtureBase,
    Modes,
    ResidualModel,
    fit_modes,
    principal_axes,
)


def modes(means, std, weights):
    means = torch.tensor(means, dtype=F64)
    return Modes(torch.tensor(weights, dtype=F64).log(), means, torch.full_like(means, std**2))


ONE = modes([[0.0, 0.0]], 1.0, [1.0])


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()], ids=["linear_vp", "vp"])
def test_on_a_path_from_noise_it_is_the_exact_model(path):
    means, weights = [[-1.0, 2.0], [1.5, 0.0]], [0.3, 0.7]
    base = MixtureBase(path, ONE, modes(means, 0.6, weights))
    exact = ExactModel(path, 1e-3, means, (0.6, 0.6), weights)
    x, t = 2 * normal((50, 2)), torch.linspace(0.01, 0.99, 50, dtype=F64)
    assert torch.allclose(base(x, t), exact(x, t).components, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.0, 1.0, 1.4])
def test_on_a_bridge_it_is_the_exact_model(sigma):
    path = SchrodingerBridgePath(sigma)
    base = MixtureBase(path, modes([[0.5, 0.5]], 0.7, [1.0]), modes([[2.0, 2.0]], 1.2, [1.0]))
    exact = ExactBridge(path, 1e-3, (0.5, 0.7), (2.0, 1.2))
    x, t = 2 * normal((50, 2)), torch.linspace(0.01, 0.99, 50, dtype=F64)
    assert torch.allclose(base(x, t), exact(x, t).components, rtol=1e-9, atol=1e-9)


def test_modes_on_both_sides_sum_to_the_derivative_of_the_marginal():
    """d/dt of the log of the explicit mixture over pairs, by automatic differentiation."""
    path, x = SchrodingerBridgePath(0.9), normal((20, 2))
    left = modes([[-1.0, 0.0], [1.0, 1.0]], 0.5, [0.2, 0.8])
    right = modes([[3.0, 2.0], [2.0, -1.0], [0.0, 4.0]], 0.8, [0.5, 0.3, 0.2])
    t = torch.linspace(0.05, 0.95, 20, dtype=F64).requires_grad_()
    logs = []
    for j in range(2):
        for k in range(3):
            a = t[:, None]
            m = (1 - a) * left.mean[j] + a * right.mean[k]
            u = (1 - a) ** 2 * left.variance[j] + a**2 * right.variance[k] + 0.81 * a * (1 - a)
            log_mode = -0.5 * ((x - m) ** 2 / u + torch.log(2 * math.pi * u)).sum(1)
            logs.append(left.log_weight[j] + right.log_weight[k] + log_mode)
    (rate,) = torch.autograd.grad(torch.logsumexp(torch.stack(logs), 0).sum(), t)
    found = MixtureBase(path, left, right)(x, t.detach()).sum(1)
    assert torch.allclose(found, rate, rtol=1e-9, atol=1e-9)


def test_axes_are_orthogonal_and_lead_along_what_varies_most():
    x0, x1 = normal((5000, 4)), normal((5000, 4), 1) + 4.0
    axes = principal_axes(x0, x1)
    assert torch.allclose(axes.T @ axes, torch.eye(4, dtype=F64), atol=1e-12)
    assert torch.allclose(axes[:, 0].abs(), torch.full((4,), 0.5, dtype=F64), atol=0.02)


def test_the_criterion_finds_the_number_of_modes_and_where_they_are():
    g = generator(3)
    which = torch.rand(6000, 1, generator=g) < 0.3
    y = torch.where(which, -2.0, 1.0) + 0.5 * torch.randn(6000, 2, generator=g)
    found = fit_modes(y)
    assert found.mean.shape == (2, 2)
    order = found.mean[:, 0].argsort()
    assert torch.allclose(found.mean[order, 0], torch.tensor([-2.0, 1.0], dtype=F64), atol=0.05)
    assert found.log_weight.exp()[order[0]].item() == pytest.approx(0.3, abs=0.03)
    assert torch.allclose(found.variance, torch.full((2, 2), 0.25, dtype=F64), atol=0.03)
    assert len(fit_modes(torch.randn(4000, 3, generator=g)).mean) == 1


def test_constant_axes_are_refused():
    with pytest.raises(UserError, match="drop constant columns"):
        fit_modes(torch.cat([normal((50, 1)), torch.ones(50, 1)], 1))


def test_a_residual_adds_to_its_base():
    class Half(torch.nn.Module):
        path, interval, net = LinearVPPath(), (0.0, 0.99), torch.nn.Identity()

        def forward(self, x, t):
            return ModelOutput(0.5 * x, None)

    model = ResidualModel(Half(), lambda x, t: x)
    x, t = normal((4, 3)), torch.full((4,), 0.5, dtype=F64)
    assert torch.equal(model(x, t).components, 1.5 * x)
    assert torch.equal(model.time_score(x, t), (1.5 * x).sum(1))
    assert model.path is Half.path and model.interval == (0.0, 0.99)
