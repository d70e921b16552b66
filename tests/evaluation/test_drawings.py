"""Conversion of uploaded and drawn images to model inputs."""

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY, digit, error_of, save_digit, save_picture
from photographs import SCENES, example, photograph
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.data.pictures import to_uint8
from ebm_app.evaluation import drawings

MNIST = EBMConfig("mnist", (1, 28, 28), 256)
FASHION = EBMConfig("fashion_mnist", (1, 28, 28), 256)


@pytest.fixture
def read(tmp_path):
    """Return a function that converts pixels by way of a file."""

    def read(pixels, config):
        return drawings.read_upload(save_picture(tmp_path / "picture.png", pixels), config)

    return read


def test_upload_is_cropped_averaged_and_rounded(read):
    numbers = np.random.RandomState(0)
    pixels = numbers.randint(0, 256, (32, 48))  # 8 columns on either side are cropped
    mean = pixels[:, 8:40].reshape(8, 4, 8, 4).mean((1, 3))
    image, (note,) = read(pixels, GREY)
    levels = image[0, 0] * 16
    assert torch.equal(levels, levels.round()) and "8x8" in note and "17 levels" in note
    assert np.abs(levels.numpy() - mean / 255 * 16).max() < 0.5 + 16 / 255
    colour = numbers.randint(0, 256, (8, 16, 3))
    mean = colour.reshape(4, 2, 8, 2, 3).mean((1, 3))
    assert np.abs(to_uint8(read(colour, COLOUR)[0])[0] - mean).max() <= 1
    grey, _ = read(pixels[:, :8], COLOUR)
    assert torch.equal(grey[:, :1].expand(-1, 3, -1, -1), grey)


def test_matching_images_are_unchanged(read, tmp_path):
    image, note = drawings.read_upload(save_digit(tmp_path / "digit.png"), GREY)
    assert torch.equal(image, digit()) and not note
    levels = np.random.RandomState(0).randint(0, 256, (28, 28))
    for factor in (1, 3):
        image, note = read(levels.repeat(factor, 0).repeat(factor, 1), MNIST)
        assert np.array_equal(to_uint8(image)[0, ..., 0], levels) and not note
    assert read(levels[:14, :14], MNIST)[1]  # smaller than the model's images


def test_unsuitable_images_raise(read, tmp_path):
    (tmp_path / "drawing.svg").write_text("<svg/>")
    assert "SVG" in error_of(drawings.read_upload, tmp_path / "drawing.svg", GREY)
    two = EBMConfig("folder:pairs", (2, 8, 8), 256)
    assert "2 channels" in error_of(read, np.zeros((9, 9)), two)
    assert error_of(drawings.prepare_drawing, Image.new("L", (9, 9)), COLOUR) == drawings.NO_COLOUR


def test_dark_digit_on_light_is_inverted_exactly(read):
    levels = to_uint8(digit())[0, ..., 0].repeat(10, 0).repeat(10, 1)
    image, notes = read(255 - levels, GREY)
    assert torch.equal(image, digit()) and notes[0] == drawings.INVERTED
    white, notes = read(np.full((8, 8), 255), GREY)
    assert white.min() == 1 and not notes
    shirt = np.full((56, 56), 250)
    shirt[14:42, 14:42] = 60
    assert drawings.INVERTED in read(shirt, FASHION)[1]
    image, notes = read(np.full((4, 8), 200) - np.eye(4, 8) * 150, COLOUR)
    assert drawings.INVERTED not in notes  # only for grey models


def test_mnist_drawing_has_box_and_centre_of_mass():
    drawing = Image.new("L", (280, 280), "white")
    drawing.paste("black", (5, 10, 40, 150))
    drawing.paste("black", (40, 115, 110, 150))
    seen = drawings.prepare_drawing(drawing, MNIST)[0, 0]
    inked = seen > 0  # whole pixels
    assert (inked.any(1).sum(), inked.any(0).sum()) == (20, 15)
    assert seen.sum() == pytest.approx((140 * 35 + 35 * 70) * (20 / 140) ** 2, rel=0.02)
    places = torch.arange(28) + 0.5
    for axis in (0, 1):
        profile = seen.sum(axis)
        assert abs((profile * places).sum() / profile.sum() - 14.5) <= 0.51  # rounded to a pixel


@pytest.mark.parametrize(("number", "scene"), SCENES.values(), ids=SCENES.keys())
def test_photographed_digit_equals_the_digit(number, scene, tmp_path):
    photograph(example(number), **scene).save(tmp_path / "photo.jpeg", quality=90)
    image, notes = drawings.read_upload(tmp_path / "photo.jpeg", MNIST)
    assert notes == [drawings.FRAMED]
    expected = drawings.to_input(example(number), MNIST)
    if "angle" not in scene:  # rotated ink differs
        overlap = torch.corrcoef(torch.stack([image.flatten(), expected.flatten()]))[0, 1]
        assert overlap > 0.6
    plain, notes = drawings.read_upload(tmp_path / "photo.jpeg", MNIST, frame=False)
    assert not torch.equal(plain, image) and drawings.FRAMED not in notes
