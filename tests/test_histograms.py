"""The bounds on log P of images whose pixels are independent draws from a known histogram."""

import math

import numpy as np
import pytest
import torch
from exact import F64, PixelHistograms, generator, normal, z_score

from ebm_app.likelihood import Estimator, LogDensity, PFODEDensity, RatioIntegral
from ebm_app.likelihood.bits import log_likelihood, to_bits_per_dim
from ebm_app.likelihood.dequantisation import TruncatedNormal
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import standard_normal_log_density
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.spaces import PixelSpace

PATHS = {"linear": LinearVPPath(), "vp": VPPath()}
SHAPE, EPS = (1, 4, 4), 1e-7


def histogram(num_levels):
    """A floor, a wave, a peak and a spike at black."""
    k = torch.arange(num_levels, dtype=F64) / num_levels
    peak = 2 * torch.exp(-200 * (k - 0.3).square())
    weights = 0.15 + torch.sin(7 * k).square() + peak + 3 * (k < 0.5 / num_levels)
    return weights / weights.sum()


class Exact(Estimator):
    """The closed form."""

    def __call__(self, energy, x, t):
        value = energy.model.log_density(x, t)
        return LogDensity(value, torch.zeros_like(value), None, 0)


def bits(model, levels, dequantiser, estimator=None, repeats=1, seed=1):
    """Bits per dim (B,) of a bound."""
    noise = torch.rand((repeats, *levels.shape), generator=generator(seed), dtype=F64)
    args = (TimeScoreEnergy(model, 32), PixelSpace(), levels, model.num_levels, noise)
    return log_likelihood(*args, dequantiser, estimator or Exact()).bits_per_dim


def exact_bits(model, levels):
    return to_bits_per_dim(model.log_prob(levels), levels[0].numel())


@pytest.mark.parametrize(("num_levels", "shape"), [(2, (3,)), (17, (2, 2, 2)), (256, (2, 2, 2))])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_exact_models_are_derivatives_of_their_log_density(path, num_levels, shape):
    """At points of the path, from all but noise to all but data, and out in the tails."""
    model = PixelHistograms(path, EPS, histogram(num_levels))
    t = torch.tensor([1e-6, 0.01, 0.3, 0.7, 0.99, 0.9999, 0.9], dtype=F64).requires_grad_()
    x1 = 2 * (model.levels((7, *shape)) + 0.5).double() / num_levels - 1
    x = path.sample(normal((7, *shape)), x1, t.detach()).xt
    x[-1] = 3.0
    x.requires_grad_()
    score, time_score = torch.autograd.grad(model.log_density(x, t).sum(), (x, t))
    output = model(x, t)
    assert torch.allclose(output.score, score, rtol=1e-9, atol=1e-9)
    assert torch.allclose(model.time_score(x, t), time_score, rtol=1e-9, atol=1e-9)
    assert output.components.shape == x.shape
    alone = model(x[2].reshape(-1, 1), t[2].item()).components
    assert torch.allclose(alone.flatten(), output.components[2].flatten(), rtol=1e-9)


def test_the_exact_models_integrate_to_one_and_draw_from_their_histogram():
    for num_levels in (2, 17):
        model = PixelHistograms(LinearVPPath(), EPS, histogram(num_levels))
        axis = torch.linspace(-7, 7, 20_001, dtype=F64)
        for t in (0.0, 0.01, 0.5, 0.99):
            density = model.log_density(axis[:, None], t).exp()
            assert abs(torch.trapezoid(density, axis) - 1) < 1e-9
        levels = model.levels((20_000, 2))
        share = torch.nn.functional.one_hot(levels[:, 0], num_levels).double()
        assert z_score(share, model.histogram) < 4.5
        entropy = -(model.histogram * model.histogram.log()).sum()
        assert z_score(-model.log_prob(levels)[:, None], 2 * entropy) < 4.5


def expected_gap(weights, tau):
    """Mean bits per pixel between the bound and -log2 P, by quadrature over e in [-tau, tau].

    In units of the deviation, cells are 2 tau wide; a pixel of level k at e sees level l with
    density q_l N(e; 2 tau (l - k), 1).
    """
    nodes, rule = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(200))
    e, mass = tau * nodes, math.erf(tau / math.sqrt(2))
    chance = rule * tau * standard_normal_log_density(e).exp() / mass
    k = torch.arange(len(weights))
    other = (k[None, :, None] - k[:, None, None]) * 2 * tau  # of l from k
    seen = weights.log()[:, None] + standard_normal_log_density(e - other)
    gain = torch.logsumexp(seen, 1) - standard_normal_log_density(e) - weights.log()[:, None]
    tail = -math.log2(mass)
    return tail - (weights * (gain @ chance)).sum().item() / math.log(2)


@pytest.mark.parametrize(
    ("path", "num_levels", "tau"),
    [
        (LinearVPPath(), 2, 3.0),
        (LinearVPPath(), 17, 2.0),
        (VPPath(), 17, 4.0),
        (VPPath(), 256, 3.0),
        (LinearVPPath(), 17, 3.0),
    ],
)
def test_the_truncated_normal_bound_of_centres_is_loose_by_little(path, num_levels, tau):
    """Image by image between the bound and log P, and in the mean as quadrature has it: at most
    the lost tail, 0.067, 0.0039 and 9e-5 bits for these tau."""
    model = PixelHistograms(path, EPS, histogram(num_levels))
    levels = model.levels((100, *SHAPE))
    gap = bits(model, levels, TruncatedNormal(tau), repeats=4) - exact_bits(model, levels)
    expected, tail = expected_gap(model.histogram, tau), -math.log2(math.erf(tau / math.sqrt(2)))
    assert 0 < expected < tail and gap.max() < tail + 1e-9
    # at tau = 4 draws that see a neighbour are too few for their spread to be seen
    assert z_score(gap[:, None], expected) < 4 if tau < 4 else abs(gap.mean()) < 1e-4
    assert tau != 3.0 or 0 < gap.mean() < 0.006


@pytest.mark.parametrize("tau", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_levels_without_neighbours_lose_the_tail_and_no_more(path, tau):
    """Whatever the noise: then p_t over a cell is the normal that q truncates."""
    weights = torch.zeros(17, dtype=F64)
    weights[::8] = torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    model = PixelHistograms(path, EPS, weights)
    levels = model.levels((50, *SHAPE))
    gap = bits(model, levels, TruncatedNormal(tau)) - exact_bits(model, levels)
    tail = torch.full_like(gap, -math.log2(math.erf(tau / math.sqrt(2))))
    assert torch.allclose(gap, tail, rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_levels, tau", [(2, 3.0), (17, 2.0), (256, 3.0)])
def test_quadrature_and_the_pf_ode_give_the_bound_of_the_exact_density(num_levels, tau):
    """To 1e-3 bits per dim on the path that starts at the reference. The Jacobian is diagonal, and
    every probe gives the exact divergence."""
    model = PixelHistograms(LinearVPPath(), EPS, histogram(num_levels))
    levels, dequantiser = model.levels((2, *SHAPE)), TruncatedNormal(tau)
    exact = bits(model, levels, dequantiser)
    for estimator in (RatioIntegral(), PFODEDensity("rk4", 40, num_probes=2)):
        found = bits(model, levels, dequantiser, estimator)
        assert (found - exact).abs().max() < 1e-3, estimator
