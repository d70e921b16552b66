"""Dequantisers: the density they draw from, its time, and the bound on log P of known images."""

import math
from types import SimpleNamespace

import pytest
import torch
from exact import F64, ExactModel, generator, z_score
from scipy import stats

from ebm_app.data.levels import dequantise
from ebm_app.likelihood import PointEstimator
from ebm_app.likelihood.bits import likelihood_of
from ebm_app.likelihood.dequantisation import TruncatedNormal, UniformDequantisation
from ebm_app.nets.density import density_of
from ebm_app.nets.protocols import LogDensityEstimate
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.spaces import PixelSpace
from ebm_app.utils.tensors import sum_except_batch

SPACE, END = PixelSpace(), 1 - 1e-7
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def images(num_levels, num, shape=(1, 2, 2)):
    return torch.randint(num_levels, (num, *shape), generator=generator(3))


def noise(shape, seed=1):
    return torch.rand(shape, generator=generator(seed), dtype=F64)


def draw(dequantiser, levels, num_levels, path=PATHS["linear"], u=None):
    u = noise(levels.shape) if u is None else u
    return dequantiser.points(levels, num_levels, SPACE, u, SimpleNamespace(path=path, end=END))


def moments(path, t):
    time = torch.tensor(t, dtype=F64)
    return path.alpha(time).item(), path.variance(time).sqrt().item()


def centres(levels, num_levels):
    return (2 * levels.double() + 1) / num_levels - 1


@pytest.mark.parametrize(("num_levels", "shape"), [(2, (3,)), (256, (2, 2, 2))])
def test_uniform_points_and_density(num_levels, shape):
    levels = images(num_levels, 4, shape)
    u, point = noise(levels.shape), draw(UniformDequantisation(), levels, num_levels)
    assert torch.equal(point.y, 2 * dequantise(levels, num_levels, u) - 1)
    width = torch.full(levels.shape, math.log(2 / num_levels), dtype=F64)
    assert torch.allclose(point.negative_log_q, width, rtol=0, atol=1e-14) and point.t == END
    trained = UniformDequantisation().training_points(levels, num_levels, SPACE, u)
    assert torch.equal(trained, point.y)
    centre = TruncatedNormal().training_points(levels, num_levels, SPACE, u)
    assert torch.allclose(centre, centres(levels, num_levels), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "shape", "tau"), [("linear", (3,), 0.5), ("vp", (2, 2, 2), 2.0), ("vp", (3,), 6.0)]
)
def test_truncated_normal_points_have_its_density(name, shape, tau):
    """They are read at the time where half a cell is tau standard deviations."""
    levels, path = images(17, 6000, shape), PATHS[name]
    point = draw(TruncatedNormal(tau), levels, 17, path)
    alpha, sigma = moments(path, point.t)
    assert alpha / 17 == pytest.approx(tau * sigma, rel=1e-9)
    assert point.t == TruncatedNormal(tau).time(17, SPACE, path)
    e = (point.y - alpha * centres(levels, 17)) / sigma
    assert e.abs().max() <= tau * (1 + 1e-9)
    truncated = stats.truncnorm(-tau, tau)
    for power in (1, 2, 4):
        assert z_score(e.flatten(1).pow(power), truncated.moment(power)) < 4.5
    density = stats.truncnorm(-tau, tau, alpha * centres(levels[:8], 17), sigma)
    expected = torch.from_numpy(-density.logpdf(point.y[:8].numpy()))
    assert torch.allclose(point.negative_log_q[:8], expected, rtol=0, atol=1e-7)
    for u, at in ((0.0, -tau), (1 - 2**-53, tau)):  # the ends of the noise
        end = draw(TruncatedNormal(tau), levels[:1], 17, path, torch.full(levels[:1].shape, u))
        e = (end.y - alpha * centres(levels[:1], 17)) / sigma
        assert torch.allclose(e, torch.full_like(e, at), rtol=1e-2)


@pytest.mark.parametrize("std", [0.5, 0.12])
@pytest.mark.parametrize(
    ("dequantiser", "name"),
    [(UniformDequantisation(), "linear"), (TruncatedNormal(2.0), "linear")],
)
def test_importance_weights_give_the_mass_of_a_cell(dequantiser, name, std):
    """E_q[p(y) / q(y)] is the integral of p over the cell for any q, so the bound holds."""
    levels = torch.arange(5).repeat(20_000, 1)
    density = torch.distributions.Normal(torch.tensor(0.1, dtype=F64), std)
    point = draw(dequantiser, levels, 5, PATHS[name])
    log_weight = density.log_prob(point.y) + point.negative_log_q
    is_uniform = isinstance(dequantiser, UniformDequantisation)
    shrink = 1.0 if is_uniform else moments(PATHS[name], point.t)[0]
    edges = shrink * (2 * torch.arange(6, dtype=F64) / 5 - 1)
    assert z_score(log_weight.exp(), density.cdf(edges).diff()) < 4.5
    assert log_weight.mean(0).exp().sum() < 1


class PixelHistograms:
    """Images of independent pixels: level k has probability ``histogram[k]`` and is at the centre
    of its cell of [-1, 1]. Stands in for a model."""

    stein_channels = 0

    def __init__(self, path, histogram):
        self.path, self.interval, self.histogram = path, path.interval(1e-7), histogram
        self.num_levels = len(histogram)
        points = centres(torch.arange(self.num_levels), self.num_levels)[:, None]
        self.pixel = ExactModel(path, 1e-7, points, torch.zeros(self.num_levels), histogram)

    def log_density(self, x, t):
        pixels = self.pixel.log_density(x.double().reshape(-1, 1), t)
        return sum_except_batch(pixels.reshape(x.shape))

    def excess_bits(self, tau, num=100):
        """Bits per dim of the bound by a truncated normal, minus the exact ones: (num,)."""
        shape = (num, 1, 4, 4)
        draws = torch.multinomial(self.histogram, math.prod(shape), True, generator=generator())
        levels, options = draws.view(shape), (self.num_levels, TruncatedNormal(tau))
        estimate = Exact().log_prob_of_levels(
            density_of(self), SPACE, levels, *options, noise((4, *shape))
        )
        exact = sum_except_batch(self.histogram.log()[levels])
        return likelihood_of([estimate], 16).bits_per_dim + exact / (16 * math.log(2))


class Exact(PointEstimator):
    """The closed form."""

    def __call__(self, model, x, t):
        value = model.model.log_density(x, t)
        return LogDensityEstimate(value, torch.zeros_like(value), None, 0)


def lost_tail(tau):
    """Bits per dim lost by the truncation: 0.067, 0.0039 and 9e-5 at tau = 2, 3 and 4."""
    return -math.log2(math.erf(tau / math.sqrt(2)))


@pytest.mark.parametrize(
    ("name", "num_levels", "tau"),
    [("linear", 2, 3.0), ("linear", 17, 2.0), ("vp", 17, 4.0), ("vp", 256, 3.0)],
)
def test_truncated_normal_bound_loses_at_most_the_tail(name, num_levels, tau):
    k = torch.arange(num_levels, dtype=F64) / num_levels
    peak = 2 * torch.exp(-200 * (k - 0.3).square())
    weights = 0.15 + torch.sin(7 * k).square() + peak + 3 * (k < 0.5 / num_levels)
    gap = PixelHistograms(PATHS[name], weights / weights.sum()).excess_bits(tau)
    assert 0 < gap.mean() and gap.max() < lost_tail(tau) + 1e-9


@pytest.mark.parametrize("name", PATHS)
def test_isolated_levels_lose_exactly_the_tail(name):
    """Without neighbours, p_t over a cell is the normal that q truncates."""
    weights = torch.zeros(17, dtype=F64)
    weights[::8] = torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    for tau in (1.5, 3.0):
        gap = PixelHistograms(PATHS[name], weights).excess_bits(tau)
        tail = torch.full_like(gap, lost_tail(tau))
        assert torch.allclose(gap, tail, rtol=0, atol=1e-9)
