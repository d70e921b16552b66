"""Two-dimensional toy data: samples against densities, moments and symmetries."""

import math

import numpy as np
import pytest
import torch
from exact import F64, generator, z_score
from scipy import stats

from ebm_app.ratios.toy_2d import MOON_NOISE, TOY_2D, Toy2DPair

NUM = 20_000
EDGE, BINS, FINE = 3.5, 40, 4  # the edges of the checkerboard fall on edges of bins
VARIANCES = {"moons": 1.0, "checkerboard": 49 / 48, "pinwheel": 1.0, "rings": 1.0}
every_distribution = pytest.mark.parametrize("name", TOY_2D)


@pytest.fixture
def default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


def moons_log_density(x):
    """By 128 Gauss-Legendre nodes in the angle along the half circles."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(128))
    angle = math.pi / 2 * (1 + nodes)
    stds = torch.tensor([3 / 4 + MOON_NOISE**2, 9 / 16 - 1 / math.pi + MOON_NOISE**2]).sqrt()
    point = x * stds + torch.tensor([1 / 2, 1 / 4])
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 1 / 2 - angle.sin()], 1)
    noise = torch.distributions.Normal(torch.cat([upper, lower]), MOON_NOISE)
    logs = noise.log_prob(point[:, None]).sum(2) + (weights / 4).repeat(2).log()
    return torch.logsumexp(logs, 1) + stds.log().sum()


def log_density(name):
    return TOY_2D[name].log_density or moons_log_density


def cells(density):
    """Centres (M, 2) and masses (M,) of the cells of a fine grid within ``EDGE``."""
    side = 2 * EDGE / (BINS * FINE)
    line = (torch.arange(BINS * FINE, dtype=F64) + 0.5) * side - EDGE
    centres = torch.cartesian_prod(line, line)
    values = torch.cat([density(part).exp() for part in centres.split(20_000)])
    return centres, side**2 * values


def histogram_p_value(x, masses):
    """Of a chi-square test of points against the masses of bins of FINE x FINE cells, those with
    few expected points and the rest of the plane taken together."""
    masses = masses.view(BINS, FINE, BINS, FINE).sum((1, 3))
    edges = [torch.linspace(-EDGE, EDGE, BINS + 1, dtype=F64)] * 2
    counts = torch.histogramdd(x.double(), edges).hist.flatten()
    expected = len(x) * masses.flatten()
    is_kept = expected > 5
    observed = torch.cat([counts[is_kept], (len(x) - counts[is_kept].sum())[None]])
    expected = torch.cat([expected[is_kept], (len(x) - expected[is_kept].sum())[None]])
    is_kept = expected > 1e-9 * len(x)  # nothing is left of the plane beside a checkerboard
    if observed[~is_kept].sum() > 0:
        return 0.0
    return stats.chisquare(observed[is_kept], expected[is_kept]).pvalue


def balance_p_value(labels, count):
    return stats.chisquare(torch.bincount(labels, minlength=count)).pvalue


@every_distribution
def test_densities_are_normalised_and_are_those_of_the_samples(name, float64):
    centres, masses = cells(log_density(name))
    assert masses.sum().item() == pytest.approx(1, abs=1e-7)
    assert (masses @ centres).abs().max() < 1e-6
    for second_moment in masses @ centres.square():  # the midpoint rule is off by 1.6e-4
        assert second_moment.item() == pytest.approx(VARIANCES[name], abs=2e-4)
    x = TOY_2D[name].sample(NUM, generator(1))
    assert histogram_p_value(x, masses) > 0.01
    for off in (1.03 * x, x + 0.04, x[:, [0, 0]]):
        assert histogram_p_value(off, masses) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkerboard_is_uniform_on_eight_squares(dtype, default_dtype):
    """No point is rounded out of its square, even where many are rounded onto an edge."""
    default_dtype(dtype)
    data = TOY_2D["checkerboard"]
    x = data.sample(NUM, generator(4))
    assert x.dtype == dtype and x.abs().max() <= 7 / 4
    assert torch.equal(data.log_density(x), torch.full((NUM,), math.log(8 / 49), dtype=F64))
    if dtype == torch.float32:
        column, row = ((x + 7 / 4) / (7 / 8)).long().unbind(1)
        assert not ((column + row) % 2).any()
        assert balance_p_value(2 * column + row // 2, 8) > 0.01
        for place in ((x + 7 / 4) / (7 / 8) % 1).T:
            assert place.min() < 1e-3 and place.max() > 1 - 1e-3
            assert stats.kstest(place.numpy(), "uniform").pvalue > 0.01
    outside = torch.tensor([[0.4, -0.4], [2.0, 0.0], [1.7, 0.5], [math.nan, 0.0]], dtype=F64)
    assert (data.log_density(outside) == -math.inf).all()


@every_distribution
def test_samples_follow_the_generator(name):
    before, sample = torch.get_rng_state(), TOY_2D[name].sample
    source = generator(7)
    x, again = sample(8, source), sample(8, source)
    assert x.shape == (8, 2) and x.dtype == torch.float32
    assert torch.equal(x, sample(8, generator(7))) and not torch.equal(x, again)
    assert sample(0, source).shape == (0, 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", [name for name in TOY_2D if TOY_2D[name].log_density])
def test_log_densities_are_float64_and_refuse_other_spaces(name):
    data = TOY_2D[name]
    x = data.sample(6, generator(8))
    log_p = data.log_density(x)
    assert log_p.dtype == F64 and log_p.shape == (6,) and log_p.isfinite().all()
    assert torch.equal(log_p, data.log_density(x.double()))
    far = data.log_density(1e4 * x.sign())
    assert not far.isnan().any() and (far < -1e5).all()
    for wrong in (x[0], x[:, :1], x[None]):
        with pytest.raises(ValueError, match=r"\(N, 2\)"):
            data.log_density(wrong)


@every_distribution
def test_the_pair_with_the_normal_reference(name, float64):
    data, pair = TOY_2D[name], Toy2DPair(name)
    x0, x1 = pair.sample0(NUM, generator(1)), pair.sample1(NUM, generator(2))
    assert z_score(x1.square().mean(1), pair.data_moment()) < 4
    assert z_score((x1 - x0).square().mean(1), pair.bridge_moment()) < 4
    assert z_score(x0, 0.0) < 4 and z_score(x0.square(), 1.0) < 4
    if data.log_density is None:
        assert pair.log_ratio(x1) is None
        return
    normal = torch.distributions.Normal(torch.zeros(2, dtype=F64), 1.0)
    expected = data.log_density(x1) - normal.log_prob(x1).sum(1)
    torch.testing.assert_close(pair.log_ratio(x1), expected, rtol=1e-12, atol=1e-12)
