"""The posterior restricted to grey levels: limits, gradients and exactness for uniform pixels."""

import math

import pytest
import torch
from exact import F64, generator, normal
from torch import nn

from ebm_app.nets.grey_levels import restrict_to_levels
from ebm_app.nets.time_score import TimeScoreModel
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.utils.tensors import expand_like, sum_except_batch

NUM_LEVELS, BIN = 16, 2 / 16
CENTRES = -1 + (2 * torch.arange(NUM_LEVELS, dtype=F64) + 1) / NUM_LEVELS


class Posterior(nn.Module):
    """A network whose Gaussian posterior is the observation itself: N(x / alpha, v / alpha^2)."""

    def __init__(self, path):
        super().__init__()
        self.path, self.t = path, None

    def forward(self, x, time):
        alpha, v, c = self.path.alpha(self.t), self.path.variance(self.t), self.path.c
        m = self.path.marginal_variance(self.t)
        gain = (c * v / m).sqrt()
        head = (1 / alpha - c * alpha / m) / gain
        out = 0.5 * (v / alpha.square() / gain.square()).log()
        return torch.cat([expand_like(out, x).expand_as(x), expand_like(head, x) * x], dim=1)


def model_of(path):
    net, options = Posterior(path), {"stein_channels": 1, "num_levels": NUM_LEVELS}
    return net, TimeScoreModel(net, path, 1e-9, "levels", **options)


def log_density_of_uniform_pixels(path, x, t):
    """log p_t of independent pixels, uniform on the levels: (B,)."""
    alpha, v = (expand_like(f(t), x)[..., None] for f in (path.alpha, path.variance))
    logs = -0.5 * ((x[..., None] - alpha * CENTRES).square() / v + (2 * math.pi * v).log())
    return sum_except_batch(logs.logsumexp(-1) - math.log(NUM_LEVELS))


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath(), LinearVPPath(c=0.4)])
@pytest.mark.parametrize("noise_in_bins", [0.05, 0.2, 0.45, 0.69])
def test_uniform_pixels_are_scored_exactly_at_narrow_noise(path, noise_in_bins):
    t = torch.full((3,), path.time_of_ratio(noise_in_bins * BIN), dtype=F64)
    k, noise = torch.randint(NUM_LEVELS, (3, 1, 2, 4), generator=generator()), normal((3, 1, 2, 4))
    x = expand_like(path.alpha(t), noise) * CENTRES[k]
    x = x + expand_like(path.variance(t).sqrt(), noise) * noise
    net, model = model_of(path)
    net.t = t
    found = model(x, t)
    at = [value.detach().requires_grad_() for value in (x, t)]
    log_density = log_density_of_uniform_pixels(path, *at)
    exact_score, exact_rate = torch.autograd.grad(log_density.sum(), at)
    assert torch.allclose(found.score, exact_score, rtol=1e-9, atol=1e-9)
    # the variance of every pixel has a floor of 1e-6 squared bins
    floor = 1e-6 * BIN**2 * path.marginal_variance(t) / (path.c * path.variance(t))
    expected = exact_rate + x[0].numel() * path.variance_gain(t) * floor
    assert torch.allclose(sum_except_batch(found.components), expected, rtol=1e-9, atol=1e-6)


def test_the_form_changes_continuously_with_the_spread():
    mean = torch.linspace(-1.2, 1.2, 49, dtype=F64)
    below, above = (
        restrict_to_levels(mean, torch.full_like(mean, (spread * BIN) ** 2), NUM_LEVELS)
        for spread in (1.4 - 1e-7, 1.4 + 1e-7)
    )
    torch.testing.assert_close(above, (0 * mean, torch.full_like(mean, (1.4 * BIN) ** 2)))
    torch.testing.assert_close(below, above, rtol=1e-5, atol=1e-7 * BIN)


@pytest.mark.parametrize("num_levels", [2, 17, 256])
def test_a_narrow_posterior_is_the_sum_over_levels(num_levels):
    centres = -1 + (2 * torch.arange(num_levels, dtype=F64) + 1) / num_levels
    mean = 2.2 * torch.rand(40, dtype=F64, generator=generator()) - 1.1
    variance = torch.full_like(mean, (0.5 * 2 / num_levels) ** 2)
    shift, found = restrict_to_levels(mean, variance, num_levels)
    p = (-0.5 * (centres - mean[:, None]).square() / variance[:, None]).softmax(1)
    expected = (p * centres).sum(1)
    spread = (p * (centres - expected[:, None]).square()).sum(1)
    floor = 1e-6 * (2 / num_levels) ** 2
    assert torch.allclose(mean + shift, expected, rtol=0, atol=1e-11)
    assert torch.allclose(found, spread + floor, rtol=1e-9, atol=1e-12)


def test_gradients_match_finite_differences():
    mean = normal((20,), 1) * 0.5
    variance = (BIN * (0.1 + 1.2 * torch.rand(20, dtype=F64, generator=generator(2)))).square()
    inputs = (mean.requires_grad_(), variance.requires_grad_())

    def moments(mean, variance):
        return restrict_to_levels(mean, variance, NUM_LEVELS)

    assert torch.autograd.gradcheck(moments, inputs, eps=1e-7)
    assert torch.autograd.gradgradcheck(moments, inputs, eps=1e-7, atol=1e-4)
