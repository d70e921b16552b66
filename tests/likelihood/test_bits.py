"""Bits per dim of known densities on pixels, averaged over draws of the noise."""

import math

import pytest
import torch
from exact import ExactModel, generator, two_modes, uniform

from ebm_app.likelihood import TimeIntegral
from ebm_app.likelihood.bits import likelihood_of
from ebm_app.likelihood.dequantisation import Cells, UniformDequantisation
from ebm_app.likelihood.estimator import error_over_draws
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath
from ebm_app.spaces import PixelSpace
from ebm_app.utils.tensors import sum_except_batch

SHAPE, MEAN, STD, EPS = (2, 3, 3), 0.15, 0.4, 1e-4


def images(num_levels, num=3):
    return torch.randint(num_levels, (num, *SHAPE), generator=generator())


def likelihood(model, levels, num_levels, u, nodes=64):
    density, dequantiser = density_of(model, nodes), UniformDequantisation()
    cells = Cells(num_levels, PixelSpace())
    estimate = TimeIntegral().log_prob_of_levels(density, levels, cells, dequantiser, u)
    return likelihood_of([estimate], levels[0].numel())


@pytest.mark.parametrize("num_levels", [2, 17, 256])
def test_gaussian_bits_match_closed_form(num_levels):
    """The density at the last time is N(alpha mu, alpha^2 s^2 + v)."""
    levels = images(num_levels)
    u, model = uniform((2, *levels.shape), 1), ExactModel(LinearVPPath(), EPS, [[MEAN]], [STD])
    result = likelihood(model, levels, num_levels, u)
    alpha = 1 - EPS
    density = torch.distributions.Normal(alpha * MEAN, (alpha**2 * STD**2 + 1 - alpha**2) ** 0.5)
    pixels = 2 * (levels + u) / num_levels - 1
    nats = (density.log_prob(pixels) + math.log(2 / num_levels)).flatten(2).sum(2).mean(0)
    assert torch.allclose(result.log_prob, nats, rtol=0, atol=1e-6)
    bits = -nats / math.log(2) / math.prod(SHAPE)
    assert torch.allclose(result.bits_per_dim, bits, rtol=0, atol=1e-6)


def test_repeats_are_averaged_and_components_sum():
    levels, model = images(17), two_modes(LinearVPPath(), 1e-6, SHAPE)
    u = uniform((3, *levels.shape), 1)
    whole = likelihood(model, levels, 17, u, nodes=12)
    single = [likelihood(model, levels, 17, u[k : k + 1], nodes=12) for k in range(3)]
    for name in ("log_prob", "bits_per_dim", "components"):
        mean = torch.stack([getattr(s, name) for s in single]).mean(0)
        assert torch.allclose(getattr(whole, name), mean, rtol=1e-10)
    values, errors = (torch.stack([s[i] for s in single]) for i in (0, 2))
    error = error_over_draws(values).hypot(errors.mean(0))  # of the draws and of the rule
    assert torch.allclose(whole.error, error, rtol=1e-10)
    assert [s.nfe for s in single] == [12, 12, 12] and whole.nfe == 36
    assert torch.allclose(sum_except_batch(whole.components), whole.log_prob, rtol=1e-10)


@pytest.mark.parametrize("num", [2, 3, 8])
def test_error_of_few_draws_covers_68_of_100_repeats(num):
    values = torch.randn(num, 20_000, generator=generator()).double()
    covered = (values.mean(0).abs() <= error_over_draws(values)).double().mean().item()
    assert covered == pytest.approx(0.6827, abs=0.01)  # three binomial errors
