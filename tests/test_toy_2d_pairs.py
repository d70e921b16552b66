"""Toy data with the reference N(0, I): the log ratio, moments and what is refused."""

import math

import pytest
import torch
from exact import F64, generator, z_score

from ebm_app.ratios.toy_2d import TOY_2D
from ebm_app.ratios.toy_2d_pairs import TOY_2D_PAIRS, KnownToy2DPair

every_pair = pytest.mark.parametrize("name", TOY_2D_PAIRS)
KNOWN = [name for name, pair in TOY_2D_PAIRS.items() if isinstance(pair, KnownToy2DPair)]


@every_pair
def test_moments_are_those_of_samples(name, float64):
    pair = TOY_2D_PAIRS[name]
    x0, x1 = pair.sample0(20_000, generator(1)), pair.sample1(20_000, generator(2))
    assert z_score(x1.square().mean(1), pair.data_moment()) < 4
    assert z_score((x1 - x0).square().mean(1), pair.bridge_moment()) < 4
    assert z_score(x0, 0.0) < 4 and z_score(x0.square(), 1.0) < 4
    assert torch.equal(x1, TOY_2D[name].sample(20_000, generator(2)))


def test_the_log_ratio_is_that_of_the_densities():
    assert KNOWN == ["checkerboard", "pinwheel", "rings"]
    normal = torch.distributions.Normal(torch.zeros(2, dtype=F64), 1.0)
    for name in KNOWN:
        pair = TOY_2D_PAIRS[name]
        x = pair.sample1(50, generator(3))
        expected = TOY_2D[name].log_density(x) - normal.log_prob(x.double()).sum(1)
        torch.testing.assert_close(pair.log_ratio(x), expected, rtol=1e-12, atol=1e-12)
        assert pair.log_ratio(x).dtype == F64 and pair.log_ratio(x).isfinite().all()
    outside = TOY_2D_PAIRS["checkerboard"].log_ratio(torch.full((1, 2), 9.0))
    assert outside.item() == -math.inf
    assert not isinstance(TOY_2D_PAIRS["moons"], KnownToy2DPair)
