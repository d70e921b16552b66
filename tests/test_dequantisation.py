"""Dequantisers: the density they draw from, where it lives, and the time at which it is read."""

import math

import pytest
import torch
from exact import F64, generator, z_score
from scipy import stats

from ebm_app.data.levels import dequantise
from ebm_app.io.errors import UserError
from ebm_app.likelihood.dequantisation import DEQUANTISERS, TruncatedNormal, UniformDequantisation
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.spaces import PixelSpace

SPACE, END = PixelSpace(), 1 - 1e-7
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}
TAUS = (0.5, 2.0, 3.0, 6.0)


def images(num_levels, num, shape=(1, 2, 2)):
    return torch.randint(num_levels, (num, *shape), generator=generator(3))


def noise(levels, seed=1):
    return torch.rand(levels.shape, generator=generator(seed), dtype=F64)


def draw(dequantiser, levels, num_levels, path=PATHS["linear"], u=None):
    u = noise(levels) if u is None else u
    return dequantiser.points(levels, num_levels, SPACE, u, path, END)


def moments(path, t):
    time = torch.tensor(t, dtype=F64)
    return path.alpha(time).item(), path.variance(time).sqrt().item()


def centres(levels, num_levels):
    return (2 * levels.double() + 1) / num_levels - 1


def residual(point, levels, num_levels, path):
    """e of y = alpha c + sigma e."""
    alpha, sigma = moments(path, point.t)
    return (point.y - alpha * centres(levels, num_levels)) / sigma


@pytest.mark.parametrize(("num_levels", "shape"), [(2, (3,)), (17, (2, 2, 2)), (256, (3,))])
def test_uniform_points_are_those_of_the_levels_with_the_width_of_a_cell(num_levels, shape):
    levels = images(num_levels, 4, shape)
    point = draw(UniformDequantisation(), levels, num_levels)
    assert torch.equal(point.y, 2 * dequantise(levels, num_levels, noise(levels)) - 1)
    width = torch.full(levels.shape, math.log(2 / num_levels), dtype=F64)
    assert torch.allclose(point.negative_log_q, width, rtol=0, atol=1e-14) and point.t == END
    trained = UniformDequantisation().training_points(levels, num_levels, SPACE, noise(levels))
    assert torch.equal(trained, point.y)


@pytest.mark.parametrize(("num_levels", "tau"), [(2, 0.5), (17, 2.0), (17, 3.0), (256, 6.0)])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_time_is_that_where_half_a_cell_is_tau_deviations(path, num_levels, tau):
    t = TruncatedNormal(tau).time(num_levels, SPACE, path)
    alpha, sigma = moments(path, t)
    assert alpha / num_levels == pytest.approx(tau * sigma, rel=1e-9)
    if isinstance(path, LinearVPPath):
        expected = (tau * num_levels) ** 2
        assert t == pytest.approx(math.sqrt(expected / (1 + expected)), rel=1e-14)


@pytest.mark.parametrize(
    ("path", "shape", "tau"),
    [
        (PATHS["linear"], (3,), 0.5),
        (PATHS["vp"], (2, 2, 2), 2.0),
        (PATHS["linear"], (2, 2, 2), 3.0),
        (PATHS["vp"], (3,), 6.0),
    ],
)
def test_truncated_normal_points_have_its_distribution_and_stay_in_the_shrunk_cell(
    path, shape, tau
):
    levels = images(17, 6000, shape)
    point = draw(TruncatedNormal(tau), levels, 17, path)
    e = residual(point, levels, 17, path)
    assert e.abs().max() <= tau * (1 + 1e-9) and point.y.dtype == F64
    alpha, _ = moments(path, point.t)
    cell = torch.floor((point.y / alpha + 1) / 2 * 17)
    assert (cell == levels).double().mean() > 1 - 1e-12
    truncated = stats.truncnorm(-tau, tau)
    for power in (1, 2, 3, 4):
        assert z_score(e.flatten(1).pow(power), truncated.moment(power)) < 4.5
    assert stats.kstest(e.flatten().numpy(), truncated.cdf).pvalue > 1e-4


@pytest.mark.parametrize("path, tau", list(zip(2 * [*PATHS.values()], TAUS, strict=True)))
def test_negative_log_q_is_that_of_scipy(path, tau):
    levels = images(5, 8)
    point = draw(TruncatedNormal(tau), levels, 5, path)
    alpha, sigma = moments(path, point.t)
    truncated = stats.truncnorm(-tau, tau, alpha * centres(levels, 5), sigma)
    expected = torch.from_numpy(-truncated.logpdf(point.y.numpy()))
    assert point.negative_log_q.shape == levels.shape and point.negative_log_q.dtype == F64
    assert torch.allclose(point.negative_log_q, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("tau", [0.5, 3.0, 8.0])
def test_the_ends_of_the_noise_are_the_ends_of_the_truncation(tau):
    levels = torch.tensor([[[[1]]]]).expand(3, -1, -1, -1)
    u = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=F64).reshape(3, 1, 1, 1)
    point = draw(TruncatedNormal(tau), levels, 5, u=u)
    e = residual(point, levels, 5, PATHS["linear"]).flatten()
    assert e.tolist() == pytest.approx([-tau, 0, tau], rel=1e-2, abs=1e-9)
    assert point.negative_log_q.isfinite().all()


DENSITIES = {  # -> log p of components and its distribution function
    "wide": torch.distributions.Normal(torch.tensor(0.1, dtype=F64), 0.5),
    "narrow": torch.distributions.Normal(torch.tensor(0.1, dtype=F64), 0.12),
}


@pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize(
    "dequantiser, path",
    [
        (UniformDequantisation(), PATHS["linear"]),
        (TruncatedNormal(2.0), PATHS["linear"]),
        (TruncatedNormal(3.0), PATHS["vp"]),
    ],
)
def test_weighted_points_have_the_mass_of_the_cell(dequantiser, path, density):
    """E_q[p(y) / q(y)] is the integral of p over the cell, exactly whatever q is; what makes the
    bound a bound."""
    levels = torch.arange(5).repeat(20_000, 1)
    point = draw(dequantiser, levels, 5, path)
    weight = (density.log_prob(point.y) + point.negative_log_q).exp()
    is_uniform = isinstance(dequantiser, UniformDequantisation)
    shrink = 1.0 if is_uniform else moments(path, point.t)[0]
    edges = shrink * (2 * torch.arange(6, dtype=F64) / 5 - 1)
    assert z_score(weight, density.cdf(edges).diff()) < 4.5
    assert (density.log_prob(point.y) + point.negative_log_q).mean(0).exp().sum() < 1


def test_training_points_are_the_centres():
    levels = torch.arange(4).reshape(1, 1, 2, 2)
    points = TruncatedNormal().training_points(levels, 4, SPACE, noise(levels))
    assert points.flatten().tolist() == [-0.75, -0.25, 0.25, 0.75]


@pytest.mark.parametrize("name", DEQUANTISERS)
def test_points_keep_the_dtype_of_the_noise_and_log_q_is_float64(name):
    levels = images(17, 3)
    rough, fine = (
        draw(DEQUANTISERS[name](), levels, 17, u=noise(levels).float().to(dtype))
        for dtype in (torch.float32, F64)
    )
    assert rough.y.dtype == torch.float32 and rough.negative_log_q.dtype == F64
    assert torch.allclose(rough.y.double(), fine.y, rtol=0, atol=1e-6) and rough.t == fine.t
    assert torch.allclose(rough.negative_log_q, fine.negative_log_q, atol=1e-6)
    assert rough.negative_log_q.shape == levels.shape


class Curved(PixelSpace):
    """A space that stretches the cells unequally."""

    scale = None


def test_mistakes_are_the_users():
    levels = images(256, 2)
    for tau in (0.0, -1.0, 8.1, math.nan, math.inf):
        with pytest.raises(UserError, match="tau must lie in"):
            TruncatedNormal(tau)
    with pytest.raises(UserError, match="Curved stretches the cells unequally: use uniform"):
        TruncatedNormal().time(256, Curved(), LinearVPPath())
    with pytest.raises(UserError, match="SchrodingerBridgePath has no known reference density"):
        TruncatedNormal().time(256, SPACE, SchrodingerBridgePath())
    with pytest.raises(UserError, match="but the model ends at 0.999: lower tau"):
        TruncatedNormal().points(levels, 256, SPACE, noise(levels), LinearVPPath(), 0.999)
    for dequantiser in (UniformDequantisation(), TruncatedNormal()):
        with pytest.raises(ValueError, match="levels are"):
            draw(dequantiser, levels, 17)
        with pytest.raises(ValueError, match="levels are integers"):
            draw(dequantiser, levels.double(), 256)
