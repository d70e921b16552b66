"""Pairs of densities: log densities against torch.distributions and integrals, samples against
their density and moments."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score
from torch import distributions

from ebm_app.ratios.pairs import (
    DensityPair,
    GaussianMixture,
    gaussian_pair,
    information_pair,
    mixture_pair,
    standard_normal,
)

NUM = 20_000


def of_torch(means, std):
    """A mixture of N(mean, std^2 I) as torch.distributions knows it."""
    means = torch.tensor(means, dtype=F64)
    modes = distributions.Independent(distributions.Normal(means, std), 1)
    weights = torch.ones(len(means), dtype=F64)
    return distributions.MixtureSameFamily(distributions.Categorical(weights), modes)


MEANS, STDS = [[-1.0, 2.0, 0.0], [0.5, 1.0, 3.0]], torch.tensor([[0.5, 0.7, 1.0]], dtype=F64)
SIGMA = 2 / math.sqrt(5)  # of k = 1
MODES = [[2 - SIGMA / 2] * 2, [2 + SIGMA / 2] * 2]
RHO = math.sqrt(-math.expm1(-1))
COVARIANCE = torch.tensor([[1, RHO], [RHO, 1]], dtype=F64)
UNEVEN = DensityPair(standard_normal(3), GaussianMixture(MEANS, STDS))
DEPENDENT = distributions.MultivariateNormal(torch.zeros(2, dtype=F64), COVARIANCE)
OTHER_MODES = [[-x for x in mode] for mode in MODES]
#: pair, and both densities as the paper states them
CASES = {
    "gaussians": (gaussian_pair(5), of_torch([[0.0] * 5], 1.0), of_torch([[4.0] * 5], 1.0)),
    "mixtures": (mixture_pair(1.0, 2), of_torch(MODES, SIGMA), of_torch(OTHER_MODES, SIGMA)),
    "uneven": (UNEVEN, of_torch([[0.0] * 3], 1.0), of_torch(MEANS, STDS)),
    "information": (information_pair(2), of_torch([[0.0] * 2], 1.0), DEPENDENT),
}
every_pair = pytest.mark.parametrize("pair, p0, p1", CASES.values(), ids=CASES)


@every_pair
def test_log_densities_match_torch(pair, p0, p1):
    """At samples of either side, and at points far from both; float64 whatever the points."""
    parts = pair.p0.sample(50, generator(1)), pair.p1.sample(50, generator(2))
    x = torch.cat([*parts, 30 * normal((50, pair.dim)).float()])
    for ours, theirs in ((pair.p0, p0), (pair.p1, p1)):
        found = ours.log_density(x)
        assert found.dtype == F64 and found.shape == (150,)
        torch.testing.assert_close(found, theirs.log_prob(x.double()), rtol=1e-9, atol=1e-9)
    expected = p1.log_prob(x.double()) - p0.log_prob(x.double())
    torch.testing.assert_close(pair.log_ratio(x), expected, rtol=1e-9, atol=1e-8)


@every_pair
def test_moments_match_samples(pair, p0, p1, float64):
    x0, x1 = pair.p0.sample(NUM, generator(3)), pair.p1.sample(NUM, generator(4))
    assert z_score(x1.square().mean(1), pair.p1.second_moment) < 4
    if pair is not CASES["information"][0]:
        assert z_score((x1 - x0).square().mean(1), pair.bridge_moment()) < 4
    for x, density in ((x0, p0), (x1, p1)):
        for axis in range(pair.dim):
            assert z_score(x[:, axis], density.mean[axis].item()) < 4
            assert z_score((x[:, axis] - density.mean[axis]) ** 2, density.variance[axis]) < 4
