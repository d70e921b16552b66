"""Spaces: inverses, log determinants, and the statistics of fitted data."""

import math

import pytest
import torch
from conftest import error_of
from exact import F64, generator, normal, uniform
from sklearn.covariance import ledoit_wolf

from ebm_app.data.levels import dequantise
from ebm_app.spaces import SPACES
from ebm_app.spaces.elementwise import Logit, Standardise
from ebm_app.spaces.gaussian import PixelMarginals, Whitening
from ebm_app.spaces.spline import Coupling
from ebm_app.utils.tensors import standard_normal_log_density

SHAPE, LEVELS = (3, 2, 2), 5
#: Shapes in which one half of a checkerboard over rows and columns, or channels, is empty
NARROW = [(1, 1, 2), (1, 2, 1), (3, 1, 1)]


def images(shape, num=4):
    """Values in [0, 1) with the ends among them."""
    x = uniform((num, *shape))
    x.view(-1)[:2] = torch.tensor([0.0, 1 - 1e-6], dtype=F64)
    return x


def dequantised(shape, num=500):
    """Dequantised levels, correlated between neighbours, with one black pixel."""
    rows = normal((num, math.prod(shape))).cumsum(1)
    levels = (rows + LEVELS / 2).round().clamp(0, LEVELS - 1).long().view(num, *shape)
    levels[:, 0, 0, 0] = 0
    return dequantise(levels, LEVELS, uniform(levels.shape, 1))


def perturb(module, size=0.08):
    """Move the weights away from the identity."""
    g = generator(7)
    for parameter in module.parameters():
        parameter.data += size * torch.randn(parameter.shape, generator=g)
    return module


def fitted(name, shape):
    space = SPACES[name](shape, LEVELS)
    space.fit(dequantised(shape))
    return perturb(space).double()


def jacobian_of(encode, image):
    jacobian = torch.autograd.functional.jacobian(lambda i: encode(i[None])[0], image)
    return jacobian.reshape(image.numel(), image.numel())


@pytest.mark.parametrize(
    "name, shape", [*((name, SHAPE) for name in SPACES), *(("spline", shape) for shape in NARROW)]
)
def test_inverse_and_log_determinant_match_the_jacobian(name, shape):
    space, x = fitted(name, shape), images(shape)
    u, log_abs_det = space.encode_with_log_abs_det(x)
    assert u.shape == x.shape and u.dtype == log_abs_det.dtype == F64
    assert torch.allclose(space.decode(u), x, rtol=1e-9, atol=1e-10)
    assert torch.allclose(space.encode(x[1:2]), u[1:2], rtol=1e-12)
    noise = normal((200, *shape), 2)
    assert torch.allclose(space.encode(space.decode(noise)), noise, rtol=1e-7, atol=1e-7)
    single = space.encode(space.decode(noise).float())
    assert single.dtype == torch.float32 and single.isfinite().all()
    rows = [torch.linalg.slogdet(jacobian_of(space.encode, image)).logabsdet for image in x[1:3]]
    assert torch.allclose(log_abs_det[1:3], torch.stack(rows), rtol=1e-9, atol=1e-6)
    single, same = (space.encode_with_log_abs_det(y)[1] for y in (x.float(), x.float().double()))
    assert torch.allclose(single, same, rtol=1e-4)


def test_whitened_data_have_unit_covariance():
    shape = (1, 2, 4)
    x = Logit().encode(dequantised(shape, 20_000))
    part = Whitening(shape)
    part.fit(x)
    rows = part.encode(x).flatten(1)
    assert rows.mean(0).abs().max() < 1e-9
    assert torch.allclose(torch.cov(rows.T), torch.eye(8, dtype=F64), atol=0.02)
    sources = torch.corrcoef(torch.cat([x.flatten(1), rows], 1).T)[:8, 8:]
    assert (sources.diagonal() > 0.5).all()  # zero-phase: each value stays at its pixel


def test_shrinkage_of_few_images_matches_scikit_learn():
    rows = normal((12, 20)) @ normal((20, 20))  # fewer images than pixels
    part = Whitening((1, 4, 5))
    part.fit(rows.view(12, 1, 4, 5))
    expected = torch.from_numpy(ledoit_wolf(rows.numpy())[0])
    assert torch.allclose(part.root @ part.root, expected, rtol=1e-9, atol=1e-9)


def test_standardised_data_have_the_shrunk_variance():
    x = uniform((500, 1, 2, 4)).square()
    part = Standardise((1, 2, 4))
    part.fit(x.float())
    u, variance = part.encode(x), x.var(0)
    assert torch.allclose(u.mean(0), torch.zeros(1, 2, 4, dtype=F64), atol=1e-6)
    expected = (variance / ((500 * variance + variance.mean()) / 501)).sqrt()
    assert torch.allclose(u.std(0), expected, atol=1e-6)
    x = torch.tensor([[[[0.1, 1.0]]], [[[0.1, 2.0]]], [[[0.1, 3.0]]]])
    for kind in (Whitening, Standardise):
        assert "no constant pixels" in error_of(kind((1, 1, 2)).fit, x)


def test_marginals_match_the_density_of_the_histogram():
    shape = (1, 2, 4)
    x = dequantised(shape, 20_000)
    part = PixelMarginals(shape, LEVELS)
    part.fit(x)
    u, log_abs_det = part.encode_with_log_abs_det(x)
    u = u.flatten(1)
    assert (u.mean(0).abs() < 0.02).all() and ((u.std(0) - 1).abs() < 0.02).all()
    # log density of the histogram at x
    cells = (x.flatten(1) * LEVELS).long()
    density = torch.zeros(len(x), dtype=F64)
    for d in range(8):
        counts = torch.bincount(cells[:, d], minlength=LEVELS).double() + 0.5
        density += (LEVELS * counts / (len(x) + 0.5 * (LEVELS + 2))).log()[cells[:, d]]
    normals = standard_normal_log_density(u).sum(1)
    assert torch.allclose(normals + log_abs_det, density, atol=1e-9)
    part = PixelMarginals((1, 1, 1), 2)  # both tails keep their digits
    u = torch.tensor([-20.0, -9.0, 0.0, 9.0, 20.0], dtype=F64).view(-1, 1, 1, 1)
    x = part.decode(u)
    assert (x.flatten().diff() >= 0).all() and x.min() < 0 and x.max() > 1
    assert torch.allclose(part.encode(x), u, rtol=1e-10)


@pytest.mark.parametrize("shape", [(1, 2, 4), SHAPE, *NARROW], ids=str)
def test_coupling_starts_as_identity_and_moves_one_half(shape):
    halves = []
    for parity in (0, 1):
        part, x = Coupling(shape, parity), normal((1, *shape))
        same, log_abs_det = part.encode_with_log_abs_det(x)
        assert torch.allclose(same, x, rtol=1e-12) and log_abs_det.abs() < 1e-12
        part = perturb(part).double()
        jacobian, moved = jacobian_of(part.encode, x[0]), part.transformed
        kept = torch.tensor([i for i in range(x.numel()) if i not in moved])
        assert torch.equal(jacobian[kept], torch.eye(x.numel(), dtype=F64)[kept])
        assert (jacobian[moved][:, kept] != 0).any()
        halves.append(moved)
    assert sorted(torch.cat(halves).tolist()) == list(range(math.prod(shape)))
    assert min(len(half) for half in halves) > 0


def test_spline_has_second_derivatives():
    """Training an energy network in a latent space takes the derivative of a score."""
    part = fitted("spline", (1, 1, 2)).parts[2].requires_grad_(False)
    u = normal((2, 1, 1, 2)).requires_grad_()
    assert torch.autograd.gradgradcheck(part.decode, (u,), atol=1e-4)
