"""Pairs of densities: log densities against torch.distributions, moments and samples against
their distribution."""

import dataclasses
import math

import pytest
import torch
from exact import F64, generator, normal, z_score
from torch import distributions

from ebm_app.ratios.diagonal_pairs import (
    DiagonalMixture,
    DiagonalPair,
    GaussianPair,
    MixturePair,
)

DIMS = (2, 5, 20)


@dataclasses.dataclass(frozen=True)
class UnevenPair(DiagonalPair):
    """What a user writes: modes of different number, place and width."""

    dim = 3
    p0 = DiagonalMixture(3, (-1.0, 0.5, 2.0), 0.7)
    p1 = DiagonalMixture(3, (1.5, 1.0), 0.3)


CASES = [
    *(GaussianPair(dim) for dim in DIMS),
    GaussianPair(2, shift=-0.3),
    *(MixturePair(k, dim) for k, dim in zip((0.5, 1.0, 2), DIMS, strict=True)),
    MixturePair(20.0, 5, centre=-0.5),
    UnevenPair(),
]
every_pair = pytest.mark.parametrize("pair", CASES, ids=str)


def multivariate(entries, std, dim):
    """The balanced mixture of N(entry 1, std^2 I) as torch.distributions knows it."""
    means = torch.tensor(entries, dtype=F64)[:, None].expand(-1, dim)
    modes = distributions.MultivariateNormal(means, std**2 * torch.eye(dim, dtype=F64))
    weights = distributions.Categorical(torch.ones(len(entries), dtype=F64))
    return distributions.MixtureSameFamily(weights, modes)


def stated(pair):
    """p0 and p1 as the paper states them."""
    if isinstance(pair, GaussianPair):
        densities = [((0.0,), 1.0), ((pair.shift,), 1.0)]
    elif isinstance(pair, MixturePair):
        sigma = math.sqrt(4 / (4 + pair.k**2))
        half = pair.k * sigma / 2
        densities = [((m - half, m + half), sigma) for m in (pair.centre, -pair.centre)]
    else:
        densities = [((-1.0, 0.5, 2.0), 0.7), ((1.5, 1.0), 0.3)]
    return [multivariate(*density, pair.dim) for density in densities]


@every_pair
def test_log_densities_and_log_ratio(pair):
    """At samples of either side, and at points far from both."""
    p0, p1 = stated(pair)
    far = 30 * normal((50, pair.dim))
    x = torch.cat([pair.sample0(50, generator(1)), pair.sample1(50, generator(2)), far])
    tolerance = {"rtol": 1e-12, "atol": 1e-10}
    torch.testing.assert_close(pair.log_density0(x), p0.log_prob(x), **tolerance)
    torch.testing.assert_close(pair.log_density1(x), p1.log_prob(x), **tolerance)
    expected = p1.log_prob(x) - p0.log_prob(x)
    torch.testing.assert_close(pair.log_ratio(x), expected, rtol=1e-11, atol=1e-9)


@every_pair
def test_log_densities_are_float64_whatever_the_points(pair):
    x = normal((6, pair.dim)).float()
    for method in (pair.log_density0, pair.log_density1, pair.log_ratio):
        assert method(x).dtype == F64 and method(x).shape == (6,)
        assert torch.equal(method(x), method(x.double()))
        for wrong in (x[0], x[:, :1], x[None]):
            with pytest.raises(ValueError, match=rf"\(N, {pair.dim}\)"):
                method(wrong)


@every_pair
def test_moments_are_those_of_samples(pair, float64):
    """Moments per dimension, and mean and variance of every coordinate."""
    x0, x1 = pair.sample0(20_000, generator(3)), pair.sample1(20_000, generator(4))
    assert z_score(x1.square().mean(1), pair.data_moment()) < 4
    assert z_score((x1 - x0).square().mean(1), pair.bridge_moment()) < 4
    for x, density in ((x0, pair.p0), (x1, pair.p1)):
        assert z_score(x, density.mean) < 4
        assert z_score((x - density.mean).square(), density.variance) < 4


def test_moments_of_the_paper():
    pair = GaussianPair(7)
    assert (pair.data_moment(), pair.bridge_moment()) == (17, 18)
    for k in (0.5, 1.0, 2.0, 1e200):
        pair = MixturePair(k)
        assert pair.p0.variance == pytest.approx(1) and pair.p1.variance == pytest.approx(1)
        assert pair.data_moment() == pytest.approx(5)
        assert pair.bridge_moment() == pytest.approx(18)


@every_pair
def test_samples_follow_the_generator(pair):
    before = torch.get_rng_state()
    for sample in (pair.sample0, pair.sample1):
        source = generator(9)
        x, again = sample(8, source), sample(8, source)
        assert x.shape == (8, pair.dim) and x.dtype == torch.float32
        assert torch.equal(x, sample(8, generator(9))) and not torch.equal(x, again)
        assert sample(0, source).shape == (0, pair.dim)
    assert torch.equal(before, torch.get_rng_state())
