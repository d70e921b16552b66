"""Dequantisers: the density they draw from, where it lives, and the time at which it is read."""

import math
from types import SimpleNamespace

import pytest
import torch
from exact import F64, generator, z_score
from scipy import stats

from ebm_app.data.levels import dequantise
from ebm_app.likelihood.dequantisation import TruncatedNormal, UniformDequantisation
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.spaces import PixelSpace

SPACE, END = PixelSpace(), 1 - 1e-7
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def images(num_levels, num, shape=(1, 2, 2)):
    return torch.randint(num_levels, (num, *shape), generator=generator(3))


def noise(levels, seed=1):
    return torch.rand(levels.shape, generator=generator(seed), dtype=F64)


def draw(dequantiser, levels, num_levels, path=PATHS["linear"], u=None, end=END):
    u, energy = noise(levels) if u is None else u, SimpleNamespace(path=path, end=end)
    return dequantiser.points(levels, num_levels, SPACE, u, energy)


def moments(path, t):
    time = torch.tensor(t, dtype=F64)
    return path.alpha(time).item(), path.variance(time).sqrt().item()


def centres(levels, num_levels):
    return (2 * levels.double() + 1) / num_levels - 1


@pytest.mark.parametrize(("num_levels", "shape"), [(2, (3,)), (256, (2, 2, 2))])
def test_uniform_points_are_those_of_the_levels_with_the_width_of_a_cell(num_levels, shape):
    levels = images(num_levels, 4, shape)
    point = draw(UniformDequantisation(), levels, num_levels)
    assert torch.equal(point.y, 2 * dequantise(levels, num_levels, noise(levels)) - 1)
    width = torch.full(levels.shape, math.log(2 / num_levels), dtype=F64)
    assert torch.allclose(point.negative_log_q, width, rtol=0, atol=1e-14) and point.t == END
    trained = UniformDequantisation().training_points(levels, num_levels, SPACE, noise(levels))
    assert torch.equal(trained, point.y)
    centre = TruncatedNormal().training_points(levels, num_levels, SPACE, noise(levels))
    assert torch.allclose(centre, centres(levels, num_levels), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("path", "shape", "tau"),
    [
        (PATHS["linear"], (3,), 0.5),
        (PATHS["vp"], (2, 2, 2), 2.0),
        (PATHS["linear"], (2, 2, 2), 3.0),
        (PATHS["vp"], (3,), 6.0),
    ],
)
def test_truncated_normal_points_have_its_density_and_stay_in_the_shrunk_cell(path, shape, tau):
    """At the time where half a cell is tau deviations."""
    levels = images(17, 6000, shape)
    point = draw(TruncatedNormal(tau), levels, 17, path)
    alpha, sigma = moments(path, point.t)
    assert alpha / 17 == pytest.approx(tau * sigma, rel=1e-9)
    assert point.t == TruncatedNormal(tau).time(17, SPACE, path)
    e = (point.y - alpha * centres(levels, 17)) / sigma
    assert e.abs().max() <= tau * (1 + 1e-9) and point.y.dtype == F64
    cell = torch.floor((point.y / alpha + 1) / 2 * 17)
    assert (cell == levels).double().mean() > 1 - 1e-12
    truncated = stats.truncnorm(-tau, tau)
    for power in (1, 2, 4):
        assert z_score(e.flatten(1).pow(power), truncated.moment(power)) < 4.5
    assert stats.kstest(e.flatten().numpy(), truncated.cdf).pvalue > 1e-4
    density = stats.truncnorm(-tau, tau, alpha * centres(levels[:8], 17), sigma)
    expected = torch.from_numpy(-density.logpdf(point.y[:8].numpy()))
    assert torch.allclose(point.negative_log_q[:8], expected, rtol=0, atol=1e-7)
    for u, at in ((0.0, -tau), (1 - 2**-53, tau)):  # the ends of the noise
        end = draw(TruncatedNormal(tau), levels[:1], 17, path, torch.full(levels[:1].shape, u))
        e = (end.y - alpha * centres(levels[:1], 17)) / sigma
        assert torch.allclose(e, torch.full_like(e, at), rtol=1e-2)


@pytest.mark.parametrize("std", [0.5, 0.12])
@pytest.mark.parametrize(
    "dequantiser, path",
    [
        (UniformDequantisation(), PATHS["linear"]),
        (TruncatedNormal(2.0), PATHS["linear"]),
        (TruncatedNormal(3.0), PATHS["vp"]),
    ],
)
def test_weighted_points_have_the_mass_of_the_cell(dequantiser, path, std):
    """E_q[p(y) / q(y)] is the integral of p over the cell, exactly whatever q is; what makes the
    bound a bound."""
    levels = torch.arange(5).repeat(20_000, 1)
    density = torch.distributions.Normal(torch.tensor(0.1, dtype=F64), std)
    point = draw(dequantiser, levels, 5, path)
    weight = (density.log_prob(point.y) + point.negative_log_q).exp()
    is_uniform = isinstance(dequantiser, UniformDequantisation)
    shrink = 1.0 if is_uniform else moments(path, point.t)[0]
    edges = shrink * (2 * torch.arange(6, dtype=F64) / 5 - 1)
    assert z_score(weight, density.cdf(edges).diff()) < 4.5
    assert (density.log_prob(point.y) + point.negative_log_q).mean(0).exp().sum() < 1
