"""Levels of images, and image files of another form than a model's."""

from itertools import combinations

import numpy as np
import pytest
import torch
from conftest import GREY, error_of, save_picture
from exact import generator
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.data.levels import dequantise, quantise, to_display, to_levels
from ebm_app.data.pictures import convert_image, to_pil, to_pixels, to_uint8
from ebm_app.evaluation.held_out import images_for


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


PHOTO = Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 30, 3), dtype=np.uint8))
SMALL = PHOTO.resize((8, 8))
COLOUR = EBMConfig("folder:photos", (3, 8, 8), 256)
#: name -> image, configuration, conversions that it needs
CASES = {
    "another size": (PHOTO, COLOUR, {"resize"}),
    "colour for grey": (SMALL, EBMConfig("x", (1, 8, 8), 256), {"grayscale"}),
    "grey for colour": (SMALL.convert("L"), COLOUR, {"rgb"}),
    "more levels": (SMALL.convert("L"), GREY, {"round_levels"}),
    "all": (PHOTO, GREY, {"resize", "grayscale", "round_levels"}),
    "none": (SMALL, COLOUR, set()),
}


@pytest.mark.parametrize(("image", "config", "needed"), CASES.values(), ids=CASES.keys())
def test_exactly_the_needed_conversions_are_named(image, config, needed):
    levels = convert_image(image, "photo", config, needed)
    assert levels.shape == config.image_shape and int(levels.max()) < config.num_levels
    if needed == {"resize"}:  # as for training
        assert torch.equal(levels, to_pixels(PHOTO, "photo", 8))
    for num in range(len(needed)):
        for allowed in combinations(sorted(needed), num):
            message = error_of(convert_image, image, "photo", config, allowed)
            flags = {word for word in message.replace(".", "").split() if word.startswith("--")}
            assert flags == {f"--{name}" for name in needed - {*allowed}}


@pytest.mark.parametrize("num_levels", [2, 17, 255, 256])
def test_saved_samples_need_no_conversion(num_levels):
    levels = (torch.arange(64).view(1, 8, 8) * 4 % num_levels).byte()
    saved = to_pil(to_uint8(to_display(levels, num_levels)[None])[0])
    config = EBMConfig("x", (1, 8, 8), num_levels)
    assert torch.equal(convert_image(saved, "sample", config), levels)


def test_folders_are_converted_only_if_allowed(tmp_path):
    for index, pixels in enumerate(np.random.RandomState(0).randint(0, 256, (60, 9, 12, 3))):
        save_picture(tmp_path / f"{index}.png", pixels)
    name = f"folder:{tmp_path}"
    message = error_of(images_for, GREY, name)
    assert "12x9 RGB" in message and "--grayscale --resize --round_levels" in message
    data = images_for(GREY, name, allowed=["grayscale", "resize", "round_levels"])
    assert data.train.shape[1:] == (1, 8, 8) and data.num_levels == 17 and data.train.max() < 17
    own = images_for(EBMConfig(name, (3, 8, 8), 256), name)  # as by --resolution 8
    assert own.image_shape == (3, 8, 8)
