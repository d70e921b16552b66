"""Spaces: bijections whose log determinant is that of their Jacobian."""

import math

import pytest
import torch
from exact import F64, generator

from ebm_app.data.levels import dequantise
from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import standard_normal_log_density
from ebm_app.spaces import SPACES, PixelSpace
from ebm_app.spaces.logit import Logit
from ebm_app.spaces.marginals import Marginals
from ebm_app.spaces.standardise import Standardise
from ebm_app.spaces.whitening import Whitening

SHAPE, LEVELS = (3, 2, 2), 5
every_space = pytest.mark.parametrize("name", SPACES)


def images(shape, num=4):
    """Values in [0, 1) with the ends among them."""
    x = torch.rand((num, *shape), generator=generator(), dtype=F64)
    x.view(-1)[:2] = torch.tensor([0.0, 1 - 1e-6], dtype=F64)
    return x


def dequantised(shape, num=500):
    """Levels with a correlation between neighbours, and one component that is black."""
    rows = torch.randn((num, math.prod(shape)), generator=generator(), dtype=F64).cumsum(1)
    levels = (rows + LEVELS / 2).round().clamp(0, LEVELS - 1).long().view(num, *shape)
    levels[:, 0, 0, 0] = 0
    noise = torch.rand(levels.shape, generator=generator(1), dtype=F64)
    return dequantise(levels, LEVELS, noise)


def fitted(name, shape):
    space = SPACES[name].build(shape, LEVELS)
    space.fit(dequantised(shape))
    return space


@every_space
def test_decode_and_encode_are_inverse_to_each_other(name):
    space, x = fitted(name, SHAPE), images(SHAPE)
    u = space.encode(x)
    assert u.shape == x.shape and u.dtype == F64
    assert torch.allclose(space.decode(u), x, rtol=1e-9, atol=1e-11)
    assert torch.allclose(space.encode(x[1:2]), u[1:2], rtol=1e-12)
    noise = torch.randn((200, *SHAPE), generator=generator(2), dtype=F64)
    assert torch.allclose(space.encode(space.decode(noise)), noise, rtol=1e-7, atol=1e-7)
    single = space.encode(space.decode(noise).float())
    assert single.dtype == torch.float32 and single.isfinite().all()


@every_space
def test_log_abs_det_is_that_of_the_jacobian(name):
    space, x, expected = fitted(name, SHAPE), images(SHAPE, 2), []
    for image in x:
        jacobian = torch.autograd.functional.jacobian(lambda i: space.encode(i[None])[0], image)
        expected.append(torch.linalg.slogdet(jacobian.reshape(12, 12)).logabsdet)
    result = space.encode_with_log_abs_det(x)[1]
    assert result.shape == (2,) and result.dtype == F64
    assert torch.allclose(result, torch.stack(expected), rtol=1e-9)
    single, same = (space.encode_with_log_abs_det(y)[1] for y in (x.float(), x.float().double()))
    assert torch.allclose(single, same, rtol=1e-5)


def test_pixels_fill_the_cube_from_minus_one_to_one():
    grey = torch.tensor([0.0, 0.5, 1.0], dtype=F64).view(3, 1, 1, 1)
    assert PixelSpace().encode(grey).flatten().tolist() == [-1, 0, 1]


def test_whitened_data_have_mean_zero_and_covariance_near_one():
    shape = (1, 2, 4)
    x = Logit().encode(dequantised(shape, 20_000))
    part = Whitening(shape)
    part.fit(x)
    rows = part.encode(x).flatten(1)
    assert rows.mean(0).abs().max() < 1e-9
    assert torch.allclose(torch.cov(rows.T), torch.eye(8, dtype=F64), atol=0.02)
    sources = torch.corrcoef(torch.cat([x.flatten(1), rows], 1).T)[:8, 8:]
    assert (sources.diagonal() > 0.5).all()  # every component still is its own pixel


def test_standardised_components_have_mean_zero_and_variance_one_but_for_one_image():
    x = torch.rand((500, 1, 2, 4), generator=generator(), dtype=F64).square()
    part = Standardise((1, 2, 4))
    part.fit(x.float())
    u, variance = part.encode(x), x.var(0)
    assert torch.allclose(u.mean(0), torch.zeros(1, 2, 4, dtype=F64), atol=1e-6)
    expected = (variance / ((500 * variance + variance.mean()) / 501)).sqrt()
    assert torch.allclose(u.std(0), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [Whitening, Standardise])
def test_a_component_that_never_changes_cannot_be_fitted(kind):
    x = torch.tensor([[[[0.1, 1.0]]], [[[0.1, 2.0]]], [[[0.1, 3.0]]]])
    with pytest.raises(UserError, match="change"):
        kind((1, 1, 2)).fit(x)


def test_marginals_are_standard_normal_and_have_the_density_of_the_histogram():
    shape = (1, 2, 4)
    x = dequantised(shape, 20_000)
    part = Marginals(shape, LEVELS)
    part.fit(x)
    u, log_abs_det = part.encode_with_log_abs_det(x)
    u = u.flatten(1)
    assert (u.mean(0).abs() < 0.02).all() and ((u.std(0) - 1).abs() < 0.02).all()
    # the histogram's log density at x, by hand
    cells = (x.flatten(1) * LEVELS).long()
    density = torch.zeros(len(x), dtype=F64)
    for d in range(8):
        counts = torch.bincount(cells[:, d], minlength=LEVELS).double() + 0.5
        density += (LEVELS * counts / (len(x) + 0.5 * (LEVELS + 2))).log()[cells[:, d]]
    normal = standard_normal_log_density(u).sum(1)
    assert torch.allclose(normal + log_abs_det, density, atol=1e-9)


def test_marginals_keep_digits_in_both_tails():
    part = Marginals((1, 1, 1), 2)
    u = torch.tensor([-20.0, -9.0, -5.0, 0.0, 5.0, 9.0, 20.0], dtype=F64).view(-1, 1, 1, 1)
    x = part.decode(u)
    assert (x.flatten().diff() >= 0).all() and x.min() < 0 and x.max() > 1
    assert torch.allclose(part.encode(x), u, rtol=1e-10)
