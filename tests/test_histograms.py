"""The bounds on log P of images whose pixels are independent draws from a known histogram."""

import math

import pytest
import torch
from exact import F64, PixelHistograms, generator

from ebm_app.likelihood import Estimator, LogDensity, PFODEDensity, RatioIntegral
from ebm_app.likelihood.bits import log_likelihood, to_bits_per_dim
from ebm_app.likelihood.dequantisation import TruncatedNormal
from ebm_app.models.energy import TimeScoreEnergy
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
    """At most the lost tail, 0.067, 0.0039 and 9e-5 bits for these tau."""
    model = PixelHistograms(path, EPS, histogram(num_levels))
    levels = model.levels((100, *SHAPE))
    gap = bits(model, levels, TruncatedNormal(tau), repeats=4) - exact_bits(model, levels)
    tail = -math.log2(math.erf(tau / math.sqrt(2)))
    assert 0 < gap.mean() and gap.max() < tail + 1e-9


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
