"""Maps between levels, continuous values and display values."""

import pytest
import torch
from conftest import error_of
from exact import generator

from ebm_app.data.levels import dequantise, quantise, to_levels


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


def test_quantise_saturates():
    x = torch.tensor([-5.0, -1e-9, 0.0, 0.24, 0.25, 0.99, 1.0, 7.0], dtype=torch.float64)
    expected = torch.tensor([0, 0, 0, 0, 1, 3, 3, 3], dtype=torch.float64) / 3
    assert torch.equal(quantise(x, 4), expected)
    assert torch.equal(quantise(x.bfloat16(), 4), expected.float())
    assert "not finite" in error_of(quantise, torch.tensor([torch.nan]), 4)


def test_to_levels_accepts_only_grid_values_and_levels():
    grid = torch.arange(17, dtype=torch.float64) / 16
    levels = torch.arange(17, dtype=torch.uint8)
    for near in (grid + 0.9e-3 / 16, grid - 0.9e-3 / 16, levels):
        assert torch.equal(to_levels(near, 17), levels)
    for images, words in (
        (grid + 1.2e-3 / 16, "not one of the 17 levels"),
        (grid * 16, "outside the range"),
        (grid - 1 / 16, "-0.0625"),
        (grid * torch.nan, "nan"),
        (levels + 1, "levels from 0 to 16, got level 17"),
        (levels.int(), "torch.int32"),
    ):
        assert words in error_of(to_levels, images, 17)
