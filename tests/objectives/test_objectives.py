"""Objectives: stationary at the exact scores, TSM a constant from CTSM, a value per example."""

import math

import pytest
import torch
from exact import F64, ExactBridge, ExactModel, generator, normal, two_modes, z_score
from path_cases import skewed

from ebm_app.nets.time_score import ModelOutput
from ebm_app.objectives.regression import CTSM, TSM, CTSMv, Dual
from ebm_app.objectives.time_sampling import ArcLength, UniformTime
from ebm_app.objectives.weighting import stein_score, time_score, uniform
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.utils.tensors import expand_like

IMAGE = (1, 4, 4)
MARGIN = 0.02


def gaussian(path, shape=(2,), eps=MARGIN):
    return ExactModel(path, eps, [[0.6]], [0.7], stein_channels=1)


def mixture(path, shape=(2,), eps=MARGIN):
    return two_modes(path, eps, shape, stein_channels=1)


def bridge(path, shape=(2,), eps=MARGIN):
    return ExactBridge(path, eps, (-0.5, 0.8), (0.7, 0.6), stein_channels=1)


class Moved:
    """``base`` plus sum_j theta_bj phi_j(x, t) in every component and in the Stein score."""

    def __init__(self, base, theta):
        self.base, self.theta = base, theta

    def __call__(self, x, t):
        out, time = self.base(x, t), expand_like(t, x)
        features = torch.stack([torch.ones_like(x), x, time * x, time.square() * torch.sin(2 * x)])
        shift = torch.einsum("jb...,bj->b...", features, self.theta)
        return ModelOutput(out.components + shift, out.score + shift)


def draw(model, num, shape, times=UniformTime, seed=0, eps=MARGIN):
    """A sample of the path, with t from a sampler, and the weights of its times."""
    sampler = times(model.path, eps)
    t, weight = sampler.sample(num, generator(seed))
    return model.sample(t, (num, *shape), seed + 2), weight


def gradients(objective, model, batch, theta=(0.0, 0.0, 0.0, 0.0)):
    """Per-example gradients (B, 4) of the loss with respect to theta."""
    theta = torch.tensor(theta, dtype=F64).expand(len(batch[1]), -1).clone().requires_grad_()
    loss = objective(Moved(model, theta), model.path, *batch)
    return torch.autograd.grad(loss.sum(), theta)[0]


OBJECTIVES = {
    "ctsm": CTSM(),
    "ctsm_v": CTSMv(),
    "ctsm_v and head": CTSMv(stein_factor=1.0),
    "dual": Dual(stein_factor=1.0),
    "tsm": TSM(eps=MARGIN),
}
CASES = {
    "linear": (gaussian, LinearVPPath()),
    "mixture c": (mixture, LinearVPPath(c=0.5)),
    "mixture vp": (mixture, VPPath()),
    "bridge": (bridge, SchrodingerBridgePath()),
    "bridge 2": (bridge, SchrodingerBridgePath(sigma=0.7, c=2.0)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_vanishes_at_the_exact_scores_and_nowhere_near(name, case):
    make, path = CASES[case]
    model = make(path, IMAGE)
    batch = draw(model, 3_000, IMAGE)
    assert z_score(gradients(OBJECTIVES[name], model, batch)) < 4
    assert z_score(gradients(OBJECTIVES[name], model, batch, (0.0, 1.5, 0.0, 0.0))) > 6


@pytest.mark.parametrize("weighting", [uniform, stein_score, time_score])
def test_every_weighting_has_the_same_minimiser(weighting):
    model = gaussian(LinearVPPath())
    batch = draw(model, 12_000, (2,))
    for objective in (CTSM(weighting), CTSMv(weighting), TSM(weighting, eps=MARGIN)):
        assert z_score(gradients(objective, model, batch)) < 4


@pytest.mark.parametrize(
    "case, weighting, shape, num, times",
    [
        ("linear", uniform, (2,), 12_000, ArcLength),
        ("linear", stein_score, IMAGE, 4_000, UniformTime),
        ("bridge", time_score, (2,), 12_000, UniformTime),
        ("bridge", stein_score, IMAGE, 4_000, ArcLength),
    ],
)
def test_tsm_and_ctsm_differ_by_a_constant(case, weighting, shape, num, times):
    """L(s1) - L(s2) is the same for both, whatever s1 and s2."""
    make, path = CASES[case]
    model = make(path, shape, eps=0.1)
    batch = sample, weight = draw(model, num, shape, times, eps=0.1)
    first = Moved(model, torch.tensor([[0.3, -0.6, 0.5, 0.4]], dtype=F64).expand(num, -1))
    second = Moved(model, torch.tensor([[-0.4, 0.2, 0.1, -0.5]], dtype=F64).expand(num, -1))
    tsm, conditional = TSM(weighting, eps=0.1), CTSM(weighting)
    by_tsm = tsm(first, path, *batch) - tsm(second, path, *batch)
    by_ctsm = conditional(first, path, *batch) - conditional(second, path, *batch)
    assert z_score(by_tsm - weight * by_ctsm) < 4
    # without the constant there would be something to see
    assert z_score(tsm(first, path, *batch) - weight * conditional(first, path, *batch)) > 6


class Silent:
    """Predicts no time score, and the Stein score of ``base``."""

    def __init__(self, base):
        self.base = base

    def __call__(self, x, t):
        return ModelOutput(torch.zeros_like(x), self.base.exact_score(x, t))


@pytest.mark.parametrize(
    "path, shape", [(LinearVPPath(c=0.4), (2,)), (VPPath(c=0.4), IMAGE)], ids=["linear", "vp"]
)
def test_normalised_terms_have_unit_size(path, shape):
    """On centred data of variance c: CTSM-v is 1 and CTSM D for s = 0, whatever t is; an exact
    Stein head leaves (1/v - 1/m) / b^2 = 1, and its factor multiplies it."""
    model = ExactModel(path, 1e-5, [[0.0]], [0.4**0.5], stein_channels=1)
    batch = sample, weight = draw(model, 8000, shape, ArcLength, eps=1e-5)
    silent = Silent(model)
    base = CTSMv()(silent, path, *batch)
    assert z_score(base, 1.0) < 4
    assert z_score(CTSM()(silent, path, *batch), float(sample.xt[0].numel())) < 4
    for objective, alone in ((CTSMv, base), (CTSM, CTSM()(silent, path, *batch))):
        head = objective(stein_factor=1.0)(silent, path, *batch) - alone
        assert z_score(head, 1.0) < 4
        weighted = objective(stein_factor=0.25)(silent, path, *batch) - alone
        assert torch.allclose(weighted, 0.25 * head, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_per_example_and_do_not_mix(name):
    model = mixture(LinearVPPath(), IMAGE)
    sample, weight = draw(model, 6, IMAGE, ArcLength)
    loss = OBJECTIVES[name](model, model.path, sample, weight)
    assert loss.shape == (6,) and loss.dtype == F64
    rows = torch.tensor([4, 1])
    fewer = type(sample)(*(part[rows] for part in sample))
    part = OBJECTIVES[name](model, model.path, fewer, weight[rows])
    assert torch.allclose(part, loss[rows], rtol=1e-12, atol=1e-12)


def test_a_single_output_is_a_time_score_but_no_vector_of_components():
    model = gaussian(LinearVPPath())
    batch = draw(model, 5, IMAGE)

    def total(x, t):
        score = model.time_score(x, t)
        return ModelOutput(score.reshape(-1, *(1,) * (x.ndim - 1)), None)

    for objective in (CTSM(), TSM(eps=MARGIN)):
        whole, summed = (objective(s, model.path, *batch) for s in (model, total))
        assert torch.allclose(whole, summed, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="components"):
        CTSMv()(total, model.path, *batch)


@pytest.mark.parametrize("time", [0.1, 0.9])
@pytest.mark.parametrize("path", [VPPath(c=0.4), SchrodingerBridgePath(0.5, c=2)])
def test_weightings_are_the_inverse_second_moments_of_their_targets(path, time):
    """Of data, or displacements, drawn from a few that are neither centred nor normal."""
    data = math.sqrt(path.c) * skewed((50, 2, 3, 2), 3)
    data = data / (data.square().mean() / path.c) ** 0.5
    delta = data[torch.randint(50, (10_000,), generator=generator(4))]
    x0, noise = normal(delta.shape, 5), normal(delta.shape, 6)
    is_bridge = isinstance(path, SchrodingerBridgePath)
    t = torch.full((len(delta),), time, dtype=F64)
    sample = path.sample(x0, x0 + delta if is_bridge else delta, t, noise)
    score, components = path.conditional_score(sample), path.conditional_components(sample)
    for weighting, target in ((stein_score, score), (time_score, components)):
        squares = target.square().flatten(1).mean(1) * weighting(path, t)
        assert z_score(squares, 1.0) < 4
    assert torch.equal(uniform(path, t), torch.ones_like(t))
