"""Bits per dim of known densities on pixels: uniform, and Gaussian in the space of the path."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, two_modes

from ebm_app.likelihood import TimeIntegral
from ebm_app.likelihood.bits import log_likelihood
from ebm_app.likelihood.dequantisation import UniformDequantisation
from ebm_app.nets.density import LogDensity, density_of
from ebm_app.paths import LinearVPPath
from ebm_app.spaces import PixelSpace
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch

SHAPE, MEAN, STD = (2, 3, 3), 0.15, 0.4


class UniformEnergy:
    """log p = -log 2 in every component: uniform on [-1, 1]."""

    path, end = LinearVPPath(), 1.0

    def log_ratio(self, u, t1, integrator):
        components = -math.log(2) - standard_normal_log_density(u)
        value = sum_except_batch(components)
        return LogDensity(value, torch.zeros_like(value), components, 5)


def gaussian(eps=1e-6):
    return ExactModel(LinearVPPath(), eps, [[MEAN]], [STD])


def images(num_levels, num=3, shape=SHAPE):
    return torch.randint(num_levels, (num, *shape), generator=generator())


def noise(repeats, levels, seed=1):
    return torch.rand((repeats, *levels.shape), generator=generator(seed), dtype=F64)


def bound(energy, levels, num_levels, u):
    estimator, dequantiser = TimeIntegral(), UniformDequantisation()
    return log_likelihood(energy, PixelSpace(), levels, num_levels, u, dequantiser, estimator)


def likelihood(model, levels, num_levels, u, nodes=64):
    return bound(density_of(model, nodes), levels, num_levels, u)


@pytest.mark.parametrize("num_levels, bits", [(256, 8.0), (2, 1.0), (17, math.log2(17))])
def test_a_uniform_density_costs_the_bits_of_its_levels(num_levels, bits):
    levels = images(num_levels)
    result = bound(UniformEnergy(), levels, num_levels, noise(2, levels))
    expected = torch.full((3,), bits, dtype=F64)
    assert torch.allclose(result.bits_per_dim, expected, rtol=0, atol=1e-12)
    nats = torch.full(levels.shape, -math.log(num_levels), dtype=F64)
    assert torch.allclose(result.components, nats, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_levels", [17, 256])
def test_a_gaussian_density_has_its_bits_per_dim(num_levels):
    """The model's density where it stops, N(alpha mu, alpha^2 s^2 + v), at the same noise."""
    levels = images(num_levels)
    u, model = noise(2, levels), gaussian(eps=1e-4)
    result = likelihood(model, levels, num_levels, u)
    alpha = 1 - 1e-4
    std = (alpha**2 * STD**2 + (1 - alpha**2)) ** 0.5
    density = torch.distributions.Normal(alpha * MEAN, std)
    pixels = 2 * (levels + u) / num_levels - 1
    nats = (density.log_prob(pixels) + math.log(2 / num_levels)).flatten(2).sum(2).mean(0)
    assert torch.allclose(result.log_prob, nats, rtol=0, atol=1e-6)
    bits = -nats / math.log(2) / math.prod(SHAPE)
    assert torch.allclose(result.bits_per_dim, bits, rtol=0, atol=1e-6)


def test_repeats_are_averaged_and_counted_and_components_sum_to_the_value():
    levels, model = images(17), two_modes(LinearVPPath(), 1e-6, SHAPE)
    u = noise(3, levels)
    whole = likelihood(model, levels, 17, u, nodes=12)
    single = [likelihood(model, levels, 17, u[k : k + 1], nodes=12) for k in range(3)]
    for name in ("log_prob", "bits_per_dim", "error", "components"):
        mean = torch.stack([getattr(s, name) for s in single]).mean(0)
        assert torch.allclose(getattr(whole, name), mean, rtol=1e-10)
    assert [s.nfe for s in single] == [12, 12, 12] and whole.nfe == 36
    assert whole.error.min() > 0
    assert torch.allclose(sum_except_batch(whole.components), whole.log_prob, rtol=1e-10)
