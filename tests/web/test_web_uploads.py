"""Conversion of uploaded and drawn images to model inputs."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY, digit, error_of, save_digit, save_picture
from PIL import Image, ImageOps

from ebm_app.config import EBMConfig
from ebm_app.data.images import load_images
from ebm_app.data.pictures import to_uint8
from ebm_app.folders import BUNDLED
from ebm_app.web import uploads

pytestmark = pytest.mark.usefixtures("page_files")

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


@pytest.fixture
def read(tmp_path):
    """Return a function that converts a picture by way of a file."""

    def read(picture, config=MNIST, **options):
        if not isinstance(picture, Image.Image):
            picture = Image.fromarray(np.asarray(picture, dtype=np.uint8))
        picture.save(tmp_path / "picture.png")
        return uploads.read_upload(tmp_path / "picture.png", config, **options)

    return read


@pytest.fixture
def prepare(tmp_path):
    """Return a function that converts a drawing."""

    def prepare(ink, config):
        return uploads.read_drawing(save_picture(tmp_path / "ink.png", ink), config).image

    return prepare


def strokes(*boxes: tuple[int, int, int, int]) -> np.ndarray:
    """Return a drawing of filled boxes (top, bottom, left, right)."""
    ink = np.zeros((280, 280))
    for top, bottom, left, right in boxes:
        ink[top:bottom, left:right] = 255
    return ink


@pytest.fixture(scope="module")
def seven():
    """Return a held-out MNIST digit of 28 x 28 pixels."""
    with Image.open(BUNDLED / "mnist" / "example_0.png") as picture:
        return picture.resize((28, 28), Image.Resampling.NEAREST)


def test_upload_is_cropped_averaged_and_rounded(read, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    assert torch.equal(uploads.read_upload(path, GREY).image, digit())
    numbers = np.random.RandomState(0)
    pixels = numbers.randint(0, 256, (32, 48))  # 8 columns on either side are cropped
    mean = pixels[:, 8:40].reshape(8, 4, 8, 4).mean((1, 3))
    levels = read(pixels, GREY, unchanged=True).image[0, 0] * 16
    assert torch.equal(levels, levels.round())
    assert np.abs(levels.numpy() - mean / 255 * 16).max() < 0.5 + 16 / 255
    colour = numbers.randint(0, 256, (8, 16, 3))
    mean = colour.reshape(4, 2, 8, 2, 3).mean((1, 3))
    assert np.abs(to_uint8(read(colour, COLOUR).image)[0] - mean).max() <= 1
    grey = read(pixels[:, :8], COLOUR).image
    assert torch.equal(grey[:, :1].expand(-1, 3, -1, -1), grey)


def test_bad_files_give_errors_without_paths(read, tmp_path):
    grey = np.random.RandomState(0).randint(0, 256, (9, 9)).astype(np.uint8)
    whole = Path(save_picture(tmp_path / "whole.png", grey)).read_bytes()
    (tmp_path / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pickle.png").write_bytes(pickle.dumps({"weights": [1.0]}))
    for name in ("truncated.png", "pickle.png"):
        message = error_of(uploads.read_upload, tmp_path / name, GREY)
        assert name in message and str(tmp_path) not in message
    assert "no image" in error_of(uploads.read_upload, None, GREY)
    two = EBMConfig("folder:pairs", (2, 8, 8), 256)
    assert "2 channels" in error_of(read, strokes(), two)
    empty = save_picture(tmp_path / "empty.png", strokes())
    for path in (None, empty):
        assert "canvas is empty" in error_of(uploads.read_drawing, path, GREY)
    assert error_of(uploads.read_drawing, empty, COLOUR) == uploads.NO_COLOUR


def test_drawing_is_scaled_like_the_digits(prepare):
    seen = prepare(strokes((100, 180, 30, 60)), GREY)[0, 0]  # a small bar off centre
    assert torch.equal(seen, prepare(strokes((20, 260, 190, 280)), GREY)[0, 0])
    bar = torch.zeros(8)
    bar[2:6] = torch.tensor([0.5, 1, 1, 0.5])  # 30 / 80 of 8 columns, centred
    assert torch.equal(seen, bar.expand(8, 8))
    wide = prepare(strokes((100, 140, 20, 260)), GREY)[0, 0]
    assert torch.equal(wide.sum(0), torch.tensor([0.0, 8, 8, 8, 8, 8, 8, 0]))


def test_mnist_drawing_has_box_and_centre_of_mass(prepare):
    seen = prepare(strokes((10, 150, 5, 40), (115, 150, 40, 110)), MNIST)[0, 0]
    inked = seen > 0  # whole pixels
    assert (inked.any(1).sum(), inked.any(0).sum()) == (20, 15)
    assert seen.sum() == pytest.approx((140 * 35 + 35 * 70) * (20 / 140) ** 2, rel=0.02)
    places = torch.arange(28) + 0.5
    for axis in (0, 1):
        profile = seen.sum(axis)
        assert abs((profile * places).sum() / profile.sum() - 14.5) <= 0.51  # rounded to a pixel


def test_fitting_images_are_unchanged_and_changes_noted(read, seven):
    found = read(seven)
    assert torch.equal(found.image[0, 0] * 255, torch.from_numpy(np.array(seven)).float())
    blocks = seven.resize((560, 560), Image.Resampling.NEAREST)
    for picture in (seven.convert("RGB"), blocks):
        same = read(picture)
        assert torch.equal(same.image, found.image) and same.notes == found.notes == ()
    assert read(Image.new("RGB", (8, 4), (9, 99, 199)), COLOUR).notes == ()
    blurred = seven.resize((560, 560), Image.Resampling.BICUBIC)
    (note,) = read(blurred, unchanged=True).notes
    assert "28x28" in note and "256 levels" in note
    assert read(blurred).notes == (uploads.SEGMENTED,)


def photograph(digit: Image.Image, paper: str, angle: float, scale: int = 7) -> Image.Image:
    """Return a photograph of dark ink on paper, 320 x 280 pixels, rotated by degrees."""
    side, numbers = 28 * scale, np.random.RandomState(0)
    large = digit.resize((side, side), Image.Resampling.BICUBIC)
    ink = Image.new("L", (320, 280))
    ink.paste(large.rotate(angle, Image.Resampling.BICUBIC), (40, 30))
    y, x = np.mgrid[:280, :320]
    along = np.cos(np.radians(angle)) * y + np.sin(np.radians(angle)) * x
    ground = {
        "shaded": 250 - 0.3 * x - 0.0005 * y**2,
        "off-white": np.full(x.shape, 226.0),
        "ruled": np.where(along % 36 < 2, 150.0, 245.0),
        "noisy": 230 + numbers.normal(0, 12, x.shape),
    }[paper]
    share = np.asarray(ink) / 255
    pixels = ground * (1 - share) + 45 * share
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("paper", ["shaded", "off-white", "ruled", "noisy"])
def test_digit_is_cut_out_of_a_photograph(read, seven, paper):
    for number, angle in enumerate((0, -10, 10)):
        picture = photograph(seven, paper, angle, 5 + number)
        turned = np.array(seven.rotate(angle, Image.Resampling.BICUBIC)) / 255
        for dark in (picture, ImageOps.invert(picture)):
            found = read(dark)
            seen = found.image[0, 0].numpy()
            assert found.notes == (uploads.SEGMENTED,) and seen.max() == 1
            assert (seen == 0).mean() > 0.6
            shifts = [np.roll(turned, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            assert max(np.corrcoef(seen.ravel(), s.ravel())[0, 1] for s in shifts) > 0.85


def test_inverted_and_transparent_images_give_the_same(read, prepare, seven):
    ink = strokes((103, 183, 33, 63), (153, 183, 63, 123))
    for config in (GREY, MNIST):
        assert (read(255 - ink, config).image - prepare(ink, config)).abs().mean() < 0.05
    clear = np.zeros((280, 280, 4))
    for shade in (0, 255):  # a stroke on a transparent background
        clear[..., :3], clear[..., 3] = shade, ink
        assert (read(clear, MNIST).image - read(255 - ink, MNIST).image).abs().mean() < 0.02
    assert (read(ImageOps.invert(seven)).image - read(seven).image).abs().mean() < 0.05
    for image in to_uint8(load_images("digits").test / 16)[..., 0]:
        assert read(image, GREY).notes == ()
