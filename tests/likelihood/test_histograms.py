"""The bounds on log P of images whose pixels are independent draws from a known histogram."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator

from ebm_app.likelihood import Estimator, LogDensity
from ebm_app.likelihood.bits import log_likelihood, to_bits_per_dim
from ebm_app.likelihood.dequantisation import TruncatedNormal
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.spaces import PixelSpace
from ebm_app.utils.tensors import sum_except_batch

PATHS = {"linear": LinearVPPath(), "vp": VPPath()}
SHAPE, EPS = (1, 4, 4), 1e-7


def histogram(num_levels):
    """A floor, a wave, a peak and a spike at black."""
    k = torch.arange(num_levels, dtype=F64) / num_levels
    peak = 2 * torch.exp(-200 * (k - 0.3).square())
    weights = 0.15 + torch.sin(7 * k).square() + peak + 3 * (k < 0.5 / num_levels)
    return weights / weights.sum()


class PixelHistograms:
    """Stands in for a model of images whose pixels are independent draws of their level: level k
    with probability ``histogram[k]``, at the centre of its cell of [-1, 1]."""

    def __init__(self, path, histogram):
        self.path, self.interval, self.histogram = path, path.interval(EPS), histogram
        self.num_levels = len(histogram)
        centres = (2 * torch.arange(self.num_levels, dtype=F64) + 1) / self.num_levels - 1
        stds = torch.zeros(self.num_levels)
        self.pixel = ExactModel(path, EPS, centres[:, None], stds, histogram)

    def log_density(self, x, t):
        pixels = self.pixel.log_density(x.double().reshape(-1, 1), t)
        return sum_except_batch(pixels.reshape(x.shape))

    def levels(self, shape):
        """Draws of the levels (B, *)."""
        num = math.prod(shape)
        return torch.multinomial(self.histogram, num, True, generator=generator()).view(shape)

    def log_prob(self, levels):
        """log P of levels (B, *): (B,), whose mean is minus the entropy."""
        return sum_except_batch(self.histogram.log()[levels])


class Exact(Estimator):
    """The closed form."""

    def __call__(self, energy, x, t):
        value = energy.model.log_density(x, t)
        return LogDensity(value, torch.zeros_like(value), None, 0)


def bits(model, levels, dequantiser, repeats=1):
    """Bits per dim (B,) of a bound."""
    noise = torch.rand((repeats, *levels.shape), generator=generator(1), dtype=F64)
    args = (density_of(model, 32), PixelSpace(), levels, model.num_levels, noise)
    return log_likelihood(*args, dequantiser, Exact()).bits_per_dim


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
    model = PixelHistograms(path, histogram(num_levels))
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
    model = PixelHistograms(path, weights)
    levels = model.levels((50, *SHAPE))
    gap = bits(model, levels, TruncatedNormal(tau)) - exact_bits(model, levels)
    tail = torch.full_like(gap, -math.log2(math.erf(tau / math.sqrt(2))))
    assert torch.allclose(gap, tail, rtol=0, atol=1e-9)
