"""Paths from noise: what their Stein score, velocity and denoiser are in closed form."""

import math

import pytest
import torch
from path_cases import (
    F64,
    assert_close,
    derivative,
    every_one_sided_path,
    every_shape,
    normal,
    times,
)
from scipy.integrate import quad
from torch.distributions import Normal

from ebm_app.numerics.tensors import expand_like
from ebm_app.paths import VPPath


def test_vp_schedule_is_the_exponential_of_its_integrated_rate():
    for low, high in ((0.1, 20.0), (0.5, 6.0), (3.0, 3.0)):
        path = VPPath(low, high)
        for t in (0.0, 0.3, 0.9, 1.0):
            exponent = quad(lambda s, b0=low, b1=high: b0 + s * (b1 - b0), 0, 1 - t)[0] / 2
            alpha = path.alpha(torch.tensor(t, dtype=F64)).item()
            assert alpha == pytest.approx(math.exp(-exponent), rel=1e-12)
    assert VPPath().alpha(torch.tensor(0.0, dtype=F64)).item() == pytest.approx(0.0066, abs=5e-5)


def mixture(path, t, x):
    """log q_t(x_i) per component, where x1 is -1 with probability 0.4 and 2 with 0.6, and the
    mean of x1 given x_t by Bayes' formula."""
    spread = expand_like(path.variance(t).sqrt(), x)
    logs = torch.stack(
        [
            math.log(p) + Normal(value * expand_like(path.alpha(t), x), spread).log_prob(x)
            for value, p in ((-1.0, 0.4), (2.0, 0.6))
        ]
    )
    posterior = logs.softmax(0)
    return logs.logsumexp(0), 2 * posterior[1] - posterior[0]


def gaussian(path, t, x, variance):
    """log q_t(x_i) per component where x1 ~ N(0, variance)."""
    total = path.alpha(t).square() * variance + path.variance(t)
    return Normal(0.0, expand_like(total.sqrt(), x)).log_prob(x)


@every_shape
@every_one_sided_path
def test_skip_is_the_score_of_gaussian_data(path, shape):
    t, x = times(), normal(shape, 3)
    score = derivative(lambda y: gaussian(path, t, y, path.c), x)
    assert_close(expand_like(path.score_skip(t), x) * x, score)


@every_shape
@every_one_sided_path
def test_velocity_obeys_the_continuity_equation_of_a_mixture(path, shape):
    """d/dt log q + u' + u (log q)' = 0 in every component, q_t not Gaussian."""
    t, x = times(), normal(shape, 5)

    def velocity(y):
        score = torch.func.grad(lambda z: mixture(path, t, z)[0].sum())(y)
        return path.velocity(y, score, t)

    _, rate = torch.func.jvp(lambda s: mixture(path, s, x)[0], (t,), (torch.ones_like(t),))
    u, divergence = torch.func.jvp(velocity, (x,), (torch.ones_like(x),))
    score = derivative(lambda y: mixture(path, t, y)[0], x)
    assert_close(path.velocity(x[2:3], score[2:3], t[2]), u[2:3], 1e-14)
    scale = rate.abs() + divergence.abs() + (u * score).abs() + 1e-3
    assert ((rate + divergence + u * score) / scale).abs().max() < 1e-10


@every_shape
@every_one_sided_path
def test_denoise_is_the_posterior_mean(path, shape):
    t, x, variance = times(), normal(shape, 6), 1.7
    score = derivative(lambda y: mixture(path, t, y)[0], x)
    assert_close(path.denoise(x, score, t), mixture(path, t, x)[1], 1e-9)
    score = derivative(lambda y: gaussian(path, t, y, variance), x)
    alpha, v = path.alpha(t), path.variance(t)
    gain = (
        alpha / v / (1 / variance + alpha.square() / v)
    )  # precisions of prior and likelihood add
    assert_close(path.denoise(x, score, t), expand_like(gain, x) * x, 1e-9)
