"""Objectives and weightings: minimisers, the constant between TSM and CTSM, losses per example;
and samplers of times.
"""

import pytest
import torch
from exact import F64, ExactBridge, ExactModel, SinePath, generator, two_modes, z_score
from scipy.integrate import quad

from ebm_app.nets.model import ModelOutput
from ebm_app.objectives.regression import CTSM, TSM, CTSMv
from ebm_app.objectives.time_sampling import (
    TIME_SAMPLERS,
    ArcLength,
    ImportanceSampler,
    UniformTime,
)
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.tensors import expand_like

IMAGE = (1, 4, 4)
MARGIN = 0.02


def gaussian(path, shape=(2,), t_margin=MARGIN):
    return ExactModel(path, t_margin, [[0.6]], [0.7], stein_channels=1)


def mixture(path, shape=(2,), t_margin=MARGIN):
    return two_modes(path, t_margin, shape, stein_channels=1)


def bridge(path, shape=(2,), t_margin=MARGIN):
    return ExactBridge(path, t_margin, (-0.5, 0.8), (0.7, 0.6), stein_channels=1)


class Shifted:
    """``base`` plus sum_j theta_bj phi_j(x, t) in every term and in the Stein score."""

    def __init__(self, base, theta):
        self.base, self.theta = base, theta

    def __call__(self, x, t):
        out, time = self.base(x, t), expand_like(t, x)
        features = torch.stack([torch.ones_like(x), x, time * x, time.square() * torch.sin(2 * x)])
        shift = torch.einsum("jb...,bj->b...", features, self.theta)
        return ModelOutput(out.components + shift, out.score + shift)


def draw(model, num, shape, times=UniformTime, t_margin=MARGIN):
    """A sample of the path and the importance weights of its times."""
    t, weight = times(model.path, t_margin).sample(num, generator(0))
    return model.sample(t, (num, *shape), 2), weight


def gradients(objective, model, batch, theta=(0.0, 0.0, 0.0, 0.0)):
    """Per-example gradients (B, 4) of the loss with respect to theta."""
    theta = torch.tensor(theta, dtype=F64).expand(len(batch[1]), -1).clone().requires_grad_()
    loss = objective(Shifted(model, theta), model.path, *batch)
    return torch.autograd.grad(loss.sum(), theta)[0]


OBJECTIVES = {
    "ctsm": CTSM(),
    "ctsm_v": CTSMv(),
    "ctsm_v and head": CTSMv(stein_factor=1.0),
    "tsm": TSM(t_margin=MARGIN),
}
CASES = {
    "linear": (gaussian, LinearVPPath()),
    "mixture vp": (mixture, VPPath()),
    "bridge": (bridge, SchrodingerBridgePath(sigma=0.7, c=2.0)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_vanishes_only_at_the_exact_scores(name, case):
    make, path = CASES[case]
    model = make(path, IMAGE)
    batch = draw(model, 3_000, IMAGE)
    assert z_score(gradients(OBJECTIVES[name], model, batch)) < 4
    assert z_score(gradients(OBJECTIVES[name], model, batch, (0.0, 1.5, 0.0, 0.0))) > 6


@pytest.mark.parametrize(
    "path, shape", [(LinearVPPath(c=0.4), (2,)), (VPPath(c=0.4), IMAGE)], ids=["linear", "vp"]
)
def test_normalised_losses_have_unit_size(path, shape):
    """On centred data of variance c and for s = 0, CTSM-v is 1 and CTSM is D at every t. An exact
    Stein head leaves (1/v - 1/m) / b^2 = 1, times its factor."""
    model = ExactModel(path, 1e-5, [[0.0]], [0.4**0.5], stein_channels=1)
    batch = sample, _ = draw(model, 8000, shape, ArcLength, t_margin=1e-5)

    def zero_time_score(x, t):
        return ModelOutput(torch.zeros_like(x), model.exact_score(x, t))

    for objective, size in ((CTSMv, 1.0), (CTSM, float(sample.xt[0].numel()))):
        alone = objective()(zero_time_score, path, *batch)
        assert z_score(alone, size) < 4
        head = objective(stein_factor=1.0)(zero_time_score, path, *batch) - alone
        assert z_score(head, 1.0) < 4
        quarter = objective(stein_factor=0.25)(zero_time_score, path, *batch) - alone
        assert torch.allclose(quarter, 0.25 * head, rtol=1e-9, atol=1e-9)


PATHS = {
    "linear_vp": LinearVPPath(),
    "vp": VPPath(),
    "bridge sigma=0.5 c=2": SchrodingerBridgePath(0.5, c=2),
    "user": SinePath(c=0.5),
}


def distribution(sampler):
    """The distribution function of a sampler on a grid of times: its stated density,
    1 / (weight (t1 - t0)), integrated by the midpoint rule."""
    u = torch.linspace(0, 1, 8 * 2048 + 1, dtype=F64)
    t, weight = sampler.transform(u).t, sampler.transform((u[1:] + u[:-1]) / 2).weight
    mass = t.diff() / (weight * (sampler.end - sampler.start))
    return u, t, torch.cat([torch.zeros(1), mass.cumsum(0)])


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("make", TIME_SAMPLERS.values(), ids=TIME_SAMPLERS)
def test_transform_inverts_the_distribution_function(make, path):
    sampler = make(path, 1e-5)
    u, t, cdf = distribution(sampler)
    drawn = sampler.sample(100, generator(2))
    assert drawn.t.dtype == F64 and sampler.start <= drawn.t.min() <= drawn.t.max() <= sampler.end
    assert (t.diff() > 0).all()
    assert t[0].item() == sampler.start
    assert t[-1].item() == pytest.approx(sampler.end, rel=1e-14)
    assert (cdf - u).abs().max() < 1e-6


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_importance_sampler_follows_the_papers_density(path):
    """p(r) proportional to (1 + r^2) / (1 - r^2)^2 on [0, 0.9], rescaled to [t0, t1]."""
    sampler = ImportanceSampler(path, 1e-5)
    t0, t1 = path.interval(1e-5)

    def density(r):
        return (1 + r * r) / (1 - r * r) ** 2

    t, weight = sampler.transform(torch.linspace(0, 1, 21, dtype=F64))
    expected = density(0.9 * (t - t0) / (t1 - t0)) * 0.9 / quad(density, 0, 0.9, epsabs=1e-13)[0]
    torch.testing.assert_close(1 / weight, expected, rtol=1e-9, atol=0)
