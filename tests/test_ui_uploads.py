"""From a visitor's file or drawing to an image on the grid of a model's levels."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY, digit, error_of, save_digit, save_picture
from PIL import Image, ImageOps

from ebm_app.data.images import load_images
from ebm_app.data.png import to_uint8
from ebm_app.evaluation.held_out_likelihoods import examples
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import BUNDLED
from ebm_app.web.score import uploads
from ebm_app.web.score.digits import ground

pytestmark = pytest.mark.usefixtures("page_files")

MNIST = EBMConfig("mnist", (1, 28, 28), 256)
FASHION = EBMConfig("fashion_mnist", (1, 28, 28), 256)


@pytest.fixture
def read(tmp_path):
    """What is made of a picture in a file."""

    def read(picture, config=MNIST, **options):
        if not isinstance(picture, Image.Image):
            picture = Image.fromarray(np.asarray(picture, dtype=np.uint8))
        picture.save(tmp_path / "picture.png")
        return uploads.read_upload(tmp_path / "picture.png", config, **options)

    return read


@pytest.fixture
def prepare(tmp_path):
    """The image that is made of a drawing."""

    def prepare(ink, config):
        return uploads.read_drawing(save_picture(tmp_path / "ink.png", ink), config).image

    return prepare


def strokes(*boxes: tuple[int, int, int, int]) -> np.ndarray:
    """A drawing of filled boxes (top, bottom, left, right)."""
    ink = np.zeros((280, 280))
    for top, bottom, left, right in boxes:
        ink[top:bottom, left:right] = 255
    return ink


def seven() -> Image.Image:
    """A held-out digit of MNIST in its own size."""
    with Image.open(examples(BUNDLED / "mnist", "data")[0]) as picture:
        return picture.resize((28, 28), Image.Resampling.NEAREST)


def test_preprocessing_crops_averages_areas_and_takes_the_nearest_level(read, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    assert torch.equal(uploads.read_upload(path, GREY).image, digit())
    numbers = np.random.RandomState(0)
    pixels = numbers.randint(0, 256, (32, 48))  # 8 columns on either side are cut off
    mean = pixels[:, 8:40].reshape(8, 4, 8, 4).mean((1, 3))
    levels = read(pixels, GREY).image[0, 0] * 16
    assert torch.equal(levels, levels.round())
    assert np.abs(levels.numpy() - mean / 255 * 16).max() < 0.5 + 16 / 255
    colour = numbers.randint(0, 256, (8, 16, 3))
    mean = colour.reshape(4, 2, 8, 2, 3).mean((1, 3))
    assert np.abs(to_uint8(read(colour, COLOUR).image)[0] - mean).max() <= 1
    grey = read(pixels[:, :8], COLOUR).image
    assert torch.equal(grey[:, :1].expand(-1, 3, -1, -1), grey)


def test_every_bad_file_is_explained_in_a_sentence_without_paths(read, tmp_path):
    grey = np.random.RandomState(0).randint(0, 256, (9, 9)).astype(np.uint8)
    whole = Path(save_picture(tmp_path / "whole.png", grey)).read_bytes()
    (tmp_path / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pickle.png").write_bytes(pickle.dumps({"weights": [1.0]}))
    more = {"save_all": True, "append_images": [Image.fromarray(255 - grey)]}
    save_picture(tmp_path / "moving.png", grey, **more)
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    for name, message in (
        ("truncated.png", "cannot read 'truncated.png' as an image: "),
        ("pickle.png", "cannot read 'pickle.png' as an image: "),
        ("moving.png", "the image 'moving.png' has several frames: "),
        ("sixteen.png", "the image 'sixteen.png' has more than 8 bits per channel: "),
    ):
        said = error_of(uploads.read_upload, tmp_path / name, GREY)
        assert said.startswith(message) and str(tmp_path) not in said
    assert "there is no image" in error_of(uploads.read_upload, None, GREY)
    two = EBMConfig("folder:pairs", (2, 8, 8), 256)
    assert "2 channels" in error_of(read, seven(), two)
    assert read(np.full((8, 8, 4), 255), GREY).image.eq(1).all()
    empty = save_picture(tmp_path / "empty.png", strokes())
    for path in (None, empty):
        assert "the canvas is empty" in error_of(uploads.read_drawing, path, GREY)
    assert error_of(uploads.read_drawing, empty, COLOUR) == uploads.NO_COLOUR
    assert uploads.drawn_path({"composite": {"path": "a.png"}}) == "a.png"
    assert uploads.drawn_path({"composite": None}) is uploads.drawn_path(None) is None


def test_a_drawn_digit_fills_the_frame_as_the_digits_of_the_data_do(prepare):
    seen = prepare(strokes((100, 180, 30, 60)), GREY)[0, 0]  # a small bar, off the middle
    assert torch.equal(seen, prepare(strokes((20, 260, 190, 280)), GREY)[0, 0])  # nor its size
    bar = torch.zeros(8)
    bar[2:6] = torch.tensor([0.5, 1, 1, 0.5])  # 30 / 80 of 8 columns, in the middle
    assert torch.equal(seen, bar.expand(8, 8))
    wide = prepare(strokes((100, 140, 20, 260)), GREY)[0, 0]
    assert torch.equal(wide.sum(0), torch.tensor([0.0, 8, 8, 8, 8, 8, 8, 0]))


def test_a_drawing_for_mnist_has_its_box_and_centre_of_mass(prepare):
    seen = prepare(strokes((10, 150, 5, 40), (115, 150, 40, 110)), MNIST)[0, 0]
    inked = seen > 0  # of whole pixels, as theirs is
    assert (inked.any(1).sum(), inked.any(0).sum()) == (20, 15)
    assert seen.sum() == pytest.approx((140 * 35 + 35 * 70) * (20 / 140) ** 2, rel=0.02)
    places = torch.arange(28) + 0.5
    for axis in (0, 1):
        profile = seen.sum(axis)
        assert abs((profile * places).sum() / profile.sum() - 14.5) <= 0.51  # to a whole pixel
    seen = prepare(strokes((10, 150, 0, 40)), FASHION)[0, 0]  # not digits: stays where it was
    assert seen[1:15, :4].eq(1).all() and seen.sum() == 14 * 4


def test_what_fits_is_taken_as_it_is_and_any_change_of_pixels_is_told(read):
    found = read(seven())
    assert torch.equal(found.image[0, 0] * 255, torch.from_numpy(np.array(seven())).float())
    blocks = seven().resize((560, 560), Image.Resampling.NEAREST)
    for picture in (seven().convert("RGB"), blocks):
        same = read(picture)
        assert torch.equal(same.image, found.image) and same.notes == found.notes == ()
    assert read(Image.new("RGB", (8, 4), (9, 99, 199)), COLOUR).notes == ()
    (note,) = read(seven().resize((560, 560), Image.Resampling.BICUBIC)).notes
    assert "which costs bits: an image of 28x28 pixels and the model's 256 levels" in note
    cropped = Image.new("L", (40, 28))
    cropped.paste(seven(), (0, 0))
    for picture, config in (
        (cropped, MNIST),
        (seven().resize((14, 14)), MNIST),
        (Image.new("L", (8, 8), 9), GREY),
        (Image.new("RGB", (8, 8), (0, 0, 90)), GREY),
    ):
        assert read(picture, config).notes[0].startswith("Pixels were changed")


def test_a_light_ground_is_pointed_at_and_inverting_takes_it_away(read):
    dark_on_light = ImageOps.invert(seven())
    (note,) = read(dark_on_light).notes
    assert note.startswith("The ground is light") and note.endswith(": tick Invert.")
    inverted = read(dark_on_light, invert=True)
    assert inverted.notes == () and torch.equal(inverted.image, read(seven()).image)
    assert "untick Invert" in read(seven(), invert=True).notes[0]
    assert read(dark_on_light, FASHION).notes == ()
    for image in to_uint8(load_images("digits").test / 16)[..., 0]:
        assert ground(Image.fromarray(image)) < 128


def test_an_uploaded_digit_is_framed_as_a_drawing_is(read, prepare):
    ink = strokes((100, 180, 30, 60), (150, 180, 60, 120))
    for config in (GREY, MNIST):
        drawn = prepare(ink, config)
        assert torch.equal(read(ink, config, frame=True).image, drawn)
    paper = np.repeat(255 - ink[..., None], 3, axis=2)
    assert torch.equal(read(paper, invert=True, frame=True).image, drawn)
    for picture, config, message in (
        (Image.new("L", (30, 30), 90), MNIST, "no digit to frame: invert dark digits"),
        (ImageOps.invert(seven()), MNIST, "no digit to frame"),
        (seven(), EBMConfig("cifar10", (3, 32, 32), 256), "not digits in a frame"),
    ):
        assert message in error_of(lambda p, c: read(p, c, frame=True), picture, config)
