"""Spaces: bijections whose log determinant is that of their Jacobian."""

import math

import pytest
import torch
from exact import F64, generator

from ebm_app.spaces import SPACES, PixelSpace

IMAGES = [(1, 2, 3), (3, 2, 2)]


def images(shape, num=4):
    """Values in [0, 1) with the ends among them."""
    x = torch.rand((num, *shape), generator=generator(), dtype=F64)
    x.view(-1)[:2] = torch.tensor([0.0, 1 - 1e-6], dtype=F64)
    return x


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_decode_is_the_inverse_of_encode(name, shape):
    space, x = SPACES[name](), images(shape)
    u = space.encode(x)
    assert u.shape == x.shape and u.dtype == F64
    assert torch.allclose(space.decode(u), x, rtol=1e-12, atol=1e-12)
    assert torch.allclose(space.encode(space.decode(u)), u, rtol=1e-9, atol=1e-9)
    alone = space.encode(x[1:2])
    assert torch.allclose(alone, u[1:2], rtol=1e-12)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_log_abs_det_is_that_of_the_jacobian(name, shape):
    space, x = SPACES[name](), images(shape)
    size = math.prod(shape)
    expected = []
    for image in x:
        jacobian = torch.autograd.functional.jacobian(lambda i: space.encode(i[None])[0], image)
        expected.append(torch.linalg.slogdet(jacobian.reshape(size, size)).logabsdet)
    result = space.log_abs_det(x)
    assert result.shape == (4,) and result.dtype == F64
    assert torch.allclose(result, torch.stack(expected), rtol=1e-10)
    assert torch.allclose(space.log_abs_det(x.float()), result, rtol=1e-5)


def test_pixels_fill_the_cube_from_minus_one_to_one():
    black, grey, white = (torch.full((1, 1, 2, 2), v, dtype=F64) for v in (0.0, 0.5, 1.0))
    space = PixelSpace()
    for image, value in ((black, -1.0), (grey, 0.0), (white, 1.0)):
        assert torch.equal(space.encode(image), torch.full_like(image, value))
