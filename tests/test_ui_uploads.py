"""From a visitor's file or drawing to an image on the grid of a model's levels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    COLOUR,
    GREY,
    bad_files,
    digit,
    error_of,
    save_digit,
    save_picture,
)
from PIL import Image, ImageOps

from ebm_app.data.images import load_images
from ebm_app.data.png import to_uint8
from ebm_app.evaluation import held_out_likelihoods as held
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import BUNDLED
from ebm_app.web.score import uploads
from ebm_app.web.score.digits import ground

pytestmark = pytest.mark.usefixtures("page_files")

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


def preprocess(path, config):
    """The image (1, C, H, W) that is made of a file."""
    return uploads.read_upload(path, config).image


def strokes(*boxes: tuple[int, int, int, int]) -> np.ndarray:
    """A drawing of filled boxes (top, bottom, left, right)."""
    ink = np.zeros((280, 280))
    for top, bottom, left, right in boxes:
        ink[top:bottom, left:right] = 255
    return ink


@pytest.fixture
def prepare(tmp_path):
    """The image that is made of a drawing."""

    def prepare(ink, config):
        return uploads.read_drawing(save_picture(tmp_path / "ink.png", ink), config).image

    return prepare


def test_preprocessing_crops_averages_areas_and_takes_the_nearest_level(tmp_path):
    assert torch.equal(preprocess(save_digit(tmp_path / "digit.png"), GREY), digit())
    numbers = np.random.RandomState(0)
    pixels = numbers.randint(0, 256, (32, 48))  # 8 columns on either side are cut off
    mean = pixels[:, 8:40].reshape(8, 4, 8, 4).mean((1, 3))
    seen = preprocess(save_picture(tmp_path / "wide.png", pixels), GREY)
    assert seen.shape == (1, 1, 8, 8)
    levels = seen[0, 0] * 16
    assert torch.equal(levels, levels.round())
    assert np.abs(levels.numpy() - mean / 255 * 16).max() < 0.5 + 16 / 255
    colour = numbers.randint(0, 256, (8, 16, 3))
    seen = preprocess(save_picture(tmp_path / "colour.png", colour), COLOUR)
    mean = colour.reshape(4, 2, 8, 2, 3).mean((1, 3))
    assert seen.shape == (1, 3, 4, 8)
    assert np.abs(to_uint8(seen)[0] - mean).max() <= 1
    grey = preprocess(save_picture(tmp_path / "grey.png", pixels[:, :8]), COLOUR)
    assert torch.equal(grey[:, :1].expand(-1, 3, -1, -1), grey)


def test_every_bad_file_is_explained_in_a_sentence_without_paths(tmp_path):
    for name, message in bad_files(tmp_path).items():
        said = error_of(preprocess, tmp_path / name, GREY)
        assert said.startswith(message) and str(tmp_path) not in said
    assert "there is no image" in error_of(preprocess, None, GREY)
    two = EBMConfig("folder:pairs", (2, 8, 8), 256)
    assert "2 channels" in error_of(preprocess, tmp_path / "whole.png", two)
    opaque = np.full((8, 8, 4), 255)
    assert preprocess(save_picture(tmp_path / "opaque.png", opaque), GREY).eq(1).all()


def test_a_drawn_digit_fills_the_frame_as_the_digits_of_the_data_do(prepare):
    seen = prepare(strokes((100, 180, 30, 60)), GREY)[0, 0]  # a small bar, off the middle
    assert torch.equal(seen, prepare(strokes((20, 260, 190, 280)), GREY)[0, 0])  # nor its size
    bar = torch.zeros(8)
    bar[2:6] = torch.tensor([0.5, 1, 1, 0.5])  # 30 / 80 of 8 columns, in the middle
    assert torch.equal(seen, bar.expand(8, 8))
    wide = prepare(strokes((100, 140, 20, 260)), GREY)[0, 0]
    assert torch.equal(wide.sum(0), torch.tensor([0.0, 8, 8, 8, 8, 8, 8, 0]))
    inked = load_images("digits").train[:, 0].float()
    assert (inked[:, [0, 7]].amax(2) >= 2).all()  # every digit reaches the first and last row
    assert (inked.sum((0, 1)) / inked.sum())[[0, 7]].sum() < 0.01


def test_a_drawing_for_mnist_has_its_box_and_centre_of_mass(prepare):
    seen = prepare(strokes((10, 150, 5, 40), (115, 150, 40, 110)), MNIST)[0, 0]
    inked = seen > 0  # of whole pixels, as theirs is
    rows, columns = inked.any(1).nonzero()[:, 0], inked.any(0).nonzero()[:, 0]
    assert len(rows) == 20 and len(columns) == 15
    assert seen.sum() == pytest.approx((140 * 35 + 35 * 70) * (20 / 140) ** 2, rel=0.02)
    places = torch.arange(28) + 0.5
    for axis in (0, 1):
        profile = seen.sum(axis)
        assert abs((profile * places).sum() / profile.sum() - 14.5) <= 0.51  # to a whole pixel
    fashion = EBMConfig("fashion_mnist", (1, 28, 28), 256)  # not digits: stays where it was drawn
    seen = prepare(strokes((10, 150, 0, 40)), fashion)[0, 0]
    assert seen[1:15, :4].eq(1).all() and seen.sum() == 14 * 4


def test_what_cannot_be_drawn_is_explained(tmp_path):
    empty = save_picture(tmp_path / "empty.png", strokes())
    for path in (None, empty):
        assert "the canvas is empty" in error_of(uploads.read_drawing, path, GREY)
    assert error_of(uploads.read_drawing, empty, COLOUR) == uploads.NO_COLOUR
    assert uploads.drawn_path({"composite": {"path": "a.png"}}) == "a.png"
    assert uploads.drawn_path({"composite": None}) is uploads.drawn_path(None) is None


def seven() -> Image.Image:
    """A held-out digit of MNIST in its own size."""
    file = held.examples(BUNDLED / "mnist", "data")[0]
    with Image.open(file) as picture:
        return picture.resize((28, 28), Image.Resampling.NEAREST)


def read(picture: Image.Image, path: Path, config=MNIST, **options):
    """What is made of a picture."""
    picture.save(path)
    return uploads.read_upload(path, config, **options)


def test_what_fits_is_taken_as_it_is_and_any_change_of_pixels_is_told(tmp_path):
    found = read(seven(), tmp_path / "seven.png")
    assert torch.equal(found.image[0, 0] * 255, torch.from_numpy(np.array(seven())).float())
    blocks = seven().resize((560, 560), Image.Resampling.NEAREST)
    for name, picture in (("rgb.png", seven().convert("RGB")), ("blocks.png", blocks)):
        same = read(picture, tmp_path / name)
        assert torch.equal(same.image, found.image) and same.notes == found.notes == ()
    smooth = seven().resize((560, 560), Image.Resampling.BICUBIC)
    (note,) = read(smooth, tmp_path / "smooth.png").notes
    assert "which costs bits: an image of 28x28 pixels and the model's 256 levels" in note
    cropped = Image.new("L", (40, 28))
    cropped.paste(seven(), (0, 0))
    for name, picture, config in (
        ("small.png", seven().resize((14, 14)), MNIST),
        ("cropped.png", cropped, MNIST),
        ("levels.png", Image.new("L", (8, 8), 9), GREY),
        ("made_grey.png", Image.new("RGB", (8, 8), (0, 0, 90)), GREY),
    ):
        assert read(picture, tmp_path / name, config).notes[0].startswith("Pixels were changed")
    colour = read(Image.new("RGB", (8, 4), (9, 99, 199)), tmp_path / "colour.png", COLOUR)
    assert colour.notes == ()


def test_a_light_ground_is_pointed_at_and_inverting_takes_it_away(tmp_path):
    dark_on_light = ImageOps.invert(seven())
    (note,) = read(dark_on_light, tmp_path / "dark.png").notes
    assert note.startswith("The ground is light") and note.endswith(": tick Invert.")
    inverted = read(dark_on_light, tmp_path / "dark.png", invert=True)
    assert inverted.notes == ()
    assert torch.equal(inverted.image, read(seven(), tmp_path / "seven.png").image)
    assert "untick Invert" in read(seven(), tmp_path / "a.png", invert=True).notes[0]
    fashion = EBMConfig("fashion_mnist", (1, 28, 28), 256)
    assert read(dark_on_light, tmp_path / "shirt.png", fashion).notes == ()
    for image in to_uint8(load_images("digits").test / 16)[..., 0]:
        assert ground(Image.fromarray(image)) < 128


def test_an_uploaded_digit_is_framed_as_a_drawing_is(tmp_path, prepare):
    ink = strokes((100, 180, 30, 60), (150, 180, 60, 120)).astype(np.uint8)
    for config in (GREY, MNIST):
        drawn = prepare(ink, config)
        found = read(Image.fromarray(ink), tmp_path / "ink.png", config, frame=True)
        assert torch.equal(found.image, drawn)
        assert "costs bits" in found.notes[0]
    paper = Image.fromarray(255 - ink).convert("RGB")
    found = read(paper, tmp_path / "paper.png", MNIST, invert=True, frame=True)
    assert torch.equal(found.image, drawn)


def test_digits_of_mnist_come_out_of_the_frame_where_they_were(tmp_path):
    for file in held.examples(BUNDLED / "mnist", "data"):
        own = preprocess(file, MNIST)
        moved = Image.new("L", (400, 300), 0)
        moved.paste(Image.open(file), (170, 3))
        again = read(moved, tmp_path / "moved.png", frame=True).image
        apart = [(again.roll((a, b), (2, 3)) - own).abs().mean() for a in (0, 1) for b in (0, 1)]
        assert apart[0] < 0.002 and apart[0] == min(apart)


def test_what_cannot_be_framed_is_explained(tmp_path):
    def refusal(picture, config=MNIST):
        return error_of(read, picture, tmp_path / "a.png", config, frame=True)

    assert "no digit to frame: invert dark digits" in refusal(Image.new("L", (30, 30), 90))
    assert "no digit to frame" in refusal(ImageOps.invert(seven()))
    assert "not digits in a frame" in refusal(seven(), EBMConfig("cifar10", (3, 32, 32), 256))
