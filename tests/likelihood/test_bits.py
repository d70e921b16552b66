"""Dequantisers, and bits per dim of known densities averaged over draws of the dequantiser."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from exact import F64, Exact, ExactModel, generator, uniform, z_score
from scipy import stats
from torch import nn

from ebm_app import EBM
from ebm_app.config import EBMConfig
from ebm_app.data.datasets import load_images
from ebm_app.likelihood import TimeIntegral
from ebm_app.likelihood.bits import mean_over_draws
from ebm_app.likelihood.dequantisation import (
    Cells,
    Decoder,
    LearnedDecoder,
    TruncatedNormal,
)
from ebm_app.likelihood.estimator import error_over_draws
from ebm_app.nets.model import LogDensityEstimate, ModelOutput, TimeScoreModel
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.spaces import PixelSpace
from ebm_app.utils.random import LIKELIHOODS, ImageNoise

SHAPE, MEAN, STD, EPS = (2, 3, 3), 0.15, 0.4, 1e-4
cells = partial(Cells, space=PixelSpace())


def images(num_levels, num=3, shape=SHAPE):
    return torch.randint(num_levels, (num, *shape), generator=generator())


def likelihood(model, levels, num_levels, repeats, nodes=64):
    model.register_buffer("unused", torch.zeros(1, dtype=F64))  # sets device and dtype
    settings = {"dequantisation": "uniform", "stein_head": False}
    ebm = EBM(EBMConfig("mine", SHAPE, num_levels, **settings), Exact(model, nodes))
    return ebm.likelihood(levels.byte(), TimeIntegral(), repeats, seed=1, batch_size=2)


def noise_of(num, repeats):
    """The noise of each draw, (repeats, num, *)."""
    noises = (ImageNoise(1, range(num), LIKELIHOODS, k) for k in range(repeats))
    return torch.stack([noise.uniform(*SHAPE).double() for noise in noises])


@pytest.mark.parametrize("num_levels", [2, 256])
def test_gaussian_bits_match_closed_form(num_levels):
    """The density at the last time is N(alpha mu, alpha^2 s^2 + v)."""
    levels = images(num_levels)
    u, model = noise_of(3, 2), ExactModel(LinearVPPath(), EPS, [[MEAN]], [STD])
    result = likelihood(model, levels, num_levels, 2)
    alpha = 1 - EPS
    density = torch.distributions.Normal(alpha * MEAN, (alpha**2 * STD**2 + 1 - alpha**2) ** 0.5)
    pixels = 2 * (levels + u) / num_levels - 1
    nats = (density.log_prob(pixels) + math.log(2 / num_levels)).flatten(2).sum(2).mean(0)
    assert torch.allclose(result.log_prob, nats, rtol=0, atol=1e-6)
    bits = -nats / math.log(2) / math.prod(SHAPE)
    assert torch.allclose(result.bits_per_dim, bits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num", [1, 4, 8])
def test_error_of_a_mean_combines_the_errors_of_its_draws(num):
    values, errors = torch.randn(2, num, 5, generator=generator(), dtype=F64).abs()
    draws = [LogDensityEstimate(*draw, None, 3) for draw in zip(values, errors, strict=True)]

    def error(is_drawn):
        mean = mean_over_draws(draws, is_drawn)
        assert torch.equal(mean.value, values.mean(0)) and mean.nfe == 3 * num
        return mean.error

    single, spread = errors.square().mean(0).sqrt(), error_over_draws(values)
    drawn = spread if num >= 8 else single / num**0.5
    assert torch.allclose(error(True), drawn, rtol=1e-12)
    shared = single.hypot(spread) if num > 1 else single
    assert torch.allclose(error(False), shared, rtol=1e-12)


@pytest.mark.parametrize("num", [1, 4, 16])
def test_error_covers_68_of_100_repeats_on_digits(num, draws):
    """A repeat is the mean over ``num`` draws; the reference is the mean over all other draws."""
    repeats = len(draws) // num
    groups = (draws[k * num : (k + 1) * num] for k in range(repeats))
    means = [mean_over_draws(group, error_is_drawn=True) for group in groups]
    values, errors = (torch.stack([mean[i] for mean in means]) for i in (0, 1))
    total = values.sum(0)
    deviation = (values - (total - values) / (repeats - 1)).abs() / (1 + 1 / (repeats - 1)) ** 0.5
    assert (deviation < errors).double().mean().item() == pytest.approx(0.68, abs=0.08)
    assert (deviation > 1.96 * errors).double().mean().item() < 0.08


@pytest.fixture(scope="module")
def draws():
    ebm, images = EBM.from_pretrained("digits"), load_images("digits").validation[:8]
    results = [ebm.likelihood(images, "elbo", seed=seed) for seed in range(64)]
    return [LogDensityEstimate(each.log_prob, each.error, None, each.nfe) for each in results]


END = 1 - 1e-7
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def draw(dequantiser, levels, num_levels, path=PATHS["linear"], u=None):
    u = uniform(levels.shape, 1) if u is None else u
    density = SimpleNamespace(path=path, end=END)
    return dequantiser.points(levels, cells(num_levels), u, density)


def moments(path, t):
    time = torch.tensor(t, dtype=F64)
    return path.alpha(time).item(), path.variance(time).sqrt().item()


def centres(levels, num_levels):
    return (2 * levels.double() + 1) / num_levels - 1


@pytest.mark.parametrize(
    ("name", "shape", "tau"), [("linear", (3,), 0.5), ("vp", (2, 2, 2), 2.0), ("vp", (3,), 6.0)]
)
def test_truncated_normal_points_have_its_density(name, shape, tau):
    """They are read at the time where half a cell is tau standard deviations."""
    levels, path = images(17, 6000, shape), PATHS[name]
    point = draw(TruncatedNormal(tau), levels, 17, path)
    alpha, sigma = moments(path, point.t)
    assert alpha / 17 == pytest.approx(tau * sigma, rel=1e-9)
    assert point.t == TruncatedNormal(tau).time(cells(17), path)
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


@pytest.mark.parametrize("t_margin", [1e-2, 1e-4, 1e-7])
def test_decoder_draws_both_logarithms_at_one_point(t_margin):
    """The noise is wider than the cells, as wide, and narrower."""
    path, levels = PATHS["linear"], images(17, 50, (1, 2, 2))
    density = SimpleNamespace(path=path, end=1 - t_margin)
    point = Decoder().points(levels, cells(17), uniform(levels.shape, 1), density)
    alpha, sigma = moments(path, density.end)
    every = alpha * centres(torch.arange(17), 17)
    log_p = torch.log_softmax(-((point.y[..., None] - every) ** 2) / (2 * sigma**2), -1)
    log_p = log_p.gather(-1, levels[..., None])[..., 0]
    log_q = torch.distributions.Normal(alpha * centres(levels, 17), sigma).log_prob(point.y)
    assert torch.allclose(point.negative_log_q, log_p - log_q, rtol=0, atol=1e-9)


@pytest.mark.parametrize("t_margin", [3e-2, 3e-3, 1e-3, 1e-5])
def test_learned_decoder_matches_the_posterior_of_pixels(t_margin):
    """The prior of a pixel is N(0.2, 0.4^2) restricted to the levels. By Bayes' rule, log p_t(y)
    - log q(y | k) + log P(k | y) = log P(k) at every y for the exact posterior."""
    path, levels = PATHS["linear"], images(17, 50, (1, 2, 2))
    every = centres(torch.arange(17), 17)
    prior = torch.log_softmax(-((every - 0.2) ** 2) / (2 * 0.4**2), 0)

    def joint(x, t):
        alpha, sigma = path.alpha(t).item(), path.variance(t).sqrt().item()
        return prior + torch.distributions.Normal(alpha * every, sigma).log_prob(x[..., None])

    class Posterior(TimeScoreModel):
        has_variance = True

        def forward(self, x, t):
            posterior, v = joint(x, t[0]).softmax(-1), path.variance(t[0])
            mean = (posterior * every).sum(-1)
            variance = (posterior * every**2).sum(-1) - mean**2
            score = (path.alpha(t[0]) * mean - x) / v
            return ModelOutput(x, score, variance * path.marginal_variance(t[0]) / v)

    density = Posterior(nn.Identity(), path, t_margin, num_levels=17)
    point = LearnedDecoder().points(levels, cells(17), uniform(levels.shape, 1), density)
    decode = partial(density.level_log_prob, x=point.y, t=density.end)
    found = torch.stack([decode(torch.full_like(levels, k)) for k in range(17)], -1)
    terms = joint(point.y, torch.tensor(density.end, dtype=F64))
    posterior, log_p = terms.log_softmax(-1), torch.logsumexp(terms, -1)
    assert torch.allclose(found.exp().sum(-1), torch.ones_like(log_p), atol=1e-9)
    divergence = (posterior.exp() * (posterior - found)).sum(-1)
    assert -1e-9 <= divergence.mean() < 0.02
    excess = (found - posterior).gather(-1, levels[..., None])[..., 0]
    total = log_p + point.negative_log_q
    assert torch.allclose(total, prior[levels] + excess, rtol=0, atol=1e-9)
