"""Levels of images, files of another form than a model's, augmentation, and unusual images."""

import math

import numpy as np
import pytest
import torch
from conftest import GREY, error_of, save_picture
from exact import generator
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.data.augmentation import AUGMENTATIONS, Affine
from ebm_app.data.images import load_images
from ebm_app.data.levels import dequantise, quantise, quantise_samples, to_display, to_levels
from ebm_app.data.pictures import convert_image, to_pil, to_pixels, to_uint8
from ebm_app.evaluation.held_out import images_for
from ebm_app.utils.random import RowNoise
from unusual_images import KINDS, make_unusual


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
#: name -> image, configuration, words of the error without ``resize``
CASES = {
    "another size": (PHOTO, COLOUR, "30x20 RGB, but the model expects 8x8 RGB with 256 levels"),
    "colour for grey": (SMALL, EBMConfig("x", (1, 8, 8), 256), "8x8 RGB"),
    "grey for colour": (SMALL.convert("L"), COLOUR, "8x8 grey, but the model expects 8x8 RGB"),
    "more levels": (SMALL.convert("L"), GREY, "8x8 grey with 17 levels"),
    "all": (PHOTO, GREY, "30x20 RGB, but the model expects 8x8 grey with 17 levels"),
}


@pytest.mark.parametrize(("image", "config", "words"), CASES.values(), ids=CASES.keys())
def test_images_of_another_format_are_converted_on_request(image, config, words):
    form = config.image_shape, config.num_levels
    message = error_of(convert_image, image, "photo", *form)
    assert "'photo'" in message and words in message and "Enable resize" in message
    levels = convert_image(image, "photo", *form, resize=True)
    assert levels.shape == config.image_shape and int(levels.max()) < config.num_levels
    if config == COLOUR and image is PHOTO:  # as for training
        assert torch.equal(levels, to_pixels(PHOTO, "photo", 8))


def test_images_of_the_same_format_are_unchanged():
    for resize in (False, True):
        levels = convert_image(SMALL, "photo", (3, 8, 8), 256, resize)
        assert torch.equal(levels, to_pixels(SMALL, "photo"))


@pytest.mark.parametrize("num_levels", [2, 17, 255, 256])
def test_saved_samples_need_no_conversion(num_levels):
    levels = (torch.arange(64).view(1, 8, 8) * 4 % num_levels).byte()
    saved = to_pil(to_uint8(to_display(levels, num_levels)[None])[0])
    assert torch.equal(convert_image(saved, "sample", (1, 8, 8), num_levels), levels)


def test_folders_are_converted_on_request(tmp_path):
    for index, pixels in enumerate(np.random.RandomState(0).randint(0, 256, (60, 9, 12, 3))):
        save_picture(tmp_path / f"{index}.png", pixels)
    name = f"folder:{tmp_path}"
    message = error_of(images_for, GREY, name)
    assert "12x9 RGB" in message and "Enable resize" in message
    data = images_for(GREY, name, resize=True)
    assert data.train.shape[1:] == (1, 8, 8) and data.num_levels == 17 and data.train.max() < 17
    own = images_for(EBMConfig(name, (3, 8, 8), 256), name)  # as by --resolution 8
    assert own.image_shape == (3, 8, 8)


def noise(num):
    return RowNoise("cpu", 0, 0, torch.arange(num), num)


def transform(position, value, monkeypatch, levels):
    """Transform ``levels`` by one number of the condition."""
    deviations = [0.0] * 6
    deviations[position] = value
    monkeypatch.setattr(Affine, "deviations", deviations)
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.zeros(*size))
    monkeypatch.setattr(torch, "randn", lambda *size, **options: torch.ones(*size))
    return Affine()(levels, noise(1))[0]


@pytest.mark.parametrize("name", ["none", "affine"])
def test_zero_condition_has_no_effect(name):
    levels = load_images("digits").train[:200]
    changed, condition = AUGMENTATIONS[name]()(levels, noise(200))
    assert changed.dtype == torch.uint8 and changed.shape == levels.shape and changed.max() <= 16
    assert condition.shape == (200, AUGMENTATIONS[name].dim)
    same = (condition == 0).all(1)
    assert torch.equal(changed[same], levels[same])


def test_flip_mirrors_half_of_the_images():
    levels = load_images("digits").train[:200]
    changed, _ = AUGMENTATIONS["flip"]()(levels, noise(200))
    is_mirrored = (changed == levels.flip(-1)).flatten(1).all(1)
    assert (is_mirrored | (changed == levels).flatten(1).all(1)).all()
    assert 60 < is_mirrored.sum() < 140


def test_rotation_shift_and_scale_match_closed_form(monkeypatch):
    levels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    levels[0, 0, 1, 2], levels[0, 0, 5, 6] = 16, 8
    turned = transform(0, math.pi / 2, monkeypatch, levels)
    assert any(torch.equal(turned, levels.rot90(k, (2, 3))) for k in (1, 3))
    shifted = transform(4, 0.5, monkeypatch, levels)  # half of half the side: two pixels
    assert torch.equal(shifted[..., :-2], levels[..., 2:])
    flat = torch.full((1, 1, 8, 8), 7, dtype=torch.uint8)
    assert torch.equal(transform(2, math.log(2), monkeypatch, flat), flat)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (5, 3, 28, 12)])
def test_kinds_keep_the_shape_and_change_most_images(kind, shape):
    images = torch.rand(shape, generator=generator())
    changed = KINDS[kind](images, generator())
    assert changed.shape == shape and changed.isfinite().all()
    assert (changed != images).flatten(1).any(1).sum() >= len(images) - 1
    assert torch.equal(changed, KINDS[kind](images, generator()))


@pytest.mark.parametrize(
    "kind", ["warped", "halves of two", "shuffled", "thick strokes", "a square of another"]
)
def test_rearranging_kinds_keep_a_constant_image(kind):
    grey = torch.full((4, 1, 8, 8), 0.25)
    torch.testing.assert_close(KINDS[kind](grey, generator()), grey)


def test_anomalies_are_valid_levels():
    levels = torch.randint(17, (200, 1, 8, 8), dtype=torch.uint8, generator=generator())
    changed = make_unusual(levels, 17, generator(), KINDS)
    assert changed.dtype == torch.uint8 and changed.shape == levels.shape and changed.max() == 16
    assert torch.equal(changed, make_unusual(levels, 17, generator(), KINDS))
    assert (changed != levels).flatten(1).any(1).float().mean() > 0.9
