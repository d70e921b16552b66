"""Grey levels: maps to continuous and display values, and images of a user."""

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import generator

from ebm_app import quantise
from ebm_app.data.levels import checked_levels, dequantise, quantise_samples, to_levels

PIXELS = np.random.RandomState(0).randint(0, 256, (12, 8, 6, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
SHAPE = (3, 8, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_levels", [2, 17, 256])
def test_level_maps_invert_each_other(num_levels, dtype):
    """Also next to the edges of a cell, where (k + u) / L rounds into the next one."""
    eps = torch.finfo(dtype).eps
    edge = torch.arange(1, 20, dtype=dtype) * eps / 2
    inside = torch.rand(200, dtype=dtype, generator=generator())
    noise = torch.cat([torch.zeros(1, dtype=dtype), edge, inside, 1 - edge])
    levels = torch.arange(num_levels, dtype=torch.uint8)[:, None].expand(-1, len(noise))
    noise = noise.expand(num_levels, -1)
    x = dequantise(levels, num_levels, noise)
    assert x.dtype == dtype and x.min() == 0 and x.max() < 1
    exact = (levels.double() + noise.double()) / num_levels
    assert (x.double() - exact).abs().max() <= 2 * eps
    shown = quantise(x, num_levels)
    assert shown.dtype == dtype and shown.min() == 0 and shown.max() == 1
    back = to_levels(shown, num_levels)
    assert back.dtype == torch.uint8 and torch.equal(back, levels)


def test_quantise_clamps_samples_and_checks_images():
    x = torch.tensor([-5.0, -1e-9, 0.0, 0.24, 0.25, 0.99, 1.0, 7.0], dtype=torch.float64)
    expected = torch.tensor([0, 0, 0, 0, 1, 3, 3, 3], dtype=torch.float64) / 3
    assert torch.equal(quantise_samples(x, 4), expected)
    assert torch.equal(quantise_samples(x.bfloat16(), 4), expected.float())
    assert "not finite" in error_of(quantise_samples, torch.tensor([torch.nan]), 4)
    assert torch.equal(quantise(x[2:-1].numpy(), 4), expected[2:-1])
    for wrong in (x, torch.arange(4), torch.tensor([torch.nan]), [0.5, 255.0]):
        assert "[0, 1]" in error_of(quantise, wrong, 4)
    for wrong in (1, -3, 2.5, 257, "a", None):
        assert "num_levels" in error_of(quantise, x[2:-1], wrong)


def test_to_levels_accepts_only_grid_values_and_levels():
    grid = torch.arange(17, dtype=torch.float64) / 16
    levels = torch.arange(17, dtype=torch.uint8)
    for near in (grid + 0.9e-3 / 16, grid - 0.9e-3 / 16, levels):
        assert torch.equal(to_levels(near, 17), levels)
    for images in (grid + 1.2e-3 / 16, grid * 16, grid * torch.nan, levels + 1, levels.int()):
        error_of(to_levels, images, 17)


@pytest.mark.parametrize(
    "shape", [(3, 8, 6), (1, 28, 28), (5, 32, 20), (8, 4, 4), (1, 1, 64), (3, 8, 3)]
)
def test_channels_are_first(shape):
    levels = torch.zeros(12, *shape, dtype=torch.uint8)
    for image_shape in (shape, None):
        assert torch.equal(checked_levels(levels.numpy(), image_shape, 256), levels)


@pytest.mark.parametrize("shape", [(8, 6, 3), (8, 6, 1), (20, 16, 4), (16, 16, 2)])
def test_last_channels_are_refused(shape):
    images, first = np.zeros((12, *shape), np.uint8), (shape[2], *shape[:2])
    for image_shape in (first, None):
        for given, name in ((images, "transpose"), (torch.from_numpy(images), "permute")):
            assert f"images.{name}(0, 3, 1, 2)" in error_of(
                checked_levels, given, image_shape, 256
            )


def test_other_layouts_are_refused_with_advice():
    masked = np.ma.masked_array(TENSOR.numpy(), TENSOR.numpy() > 250)
    for given, advice in (
        (TENSOR[:, 0], "images[None]"),
        (TENSOR[:0], "at least one image"),
        (TENSOR.mT, "got (12, 3, 6, 8)"),
        (torch.rand(2, 3, 8, 6), "quantise"),
        (masked, "array"),
        ((TENSOR / 255).to_sparse(), "sparse"),
    ):
        assert advice in error_of(checked_levels, given, SHAPE, 256)
