"""The reader of image files: formats, modes, files that cannot be used, conversion to levels."""

import os

import numpy as np
import pytest
import torch
from conftest import GREY, deep_png, encoded, error_of
from PIL import Image, ImageOps

from ebm_app import EBM, read_images, train
from ebm_app.anomaly import AnomalyDetector
from ebm_app.data.levels import to_display
from ebm_app.data.pictures import (
    exact_levels,
    read_pixels,
    square_pixels,
    to_pil,
    to_pixels,
    to_uint8,
)

NUMBERS = np.random.RandomState(0)
PIXELS = NUMBERS.randint(0, 256, (12, 8, 6, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
PICTURES = [Image.fromarray(each) for each in PIXELS]
SHAPE = (3, 8, 6)
LEVELS = torch.from_numpy(NUMBERS.randint(0, 17, (12, 1, 8, 8)).astype(np.uint8))


FLAT = Image.new("L", (6, 5), 7)
LARGE = Image.fromarray(NUMBERS.randint(0, 256, (50, 60)).astype(np.uint8))
#: name -> content of a file, or None for a pipe, and words of the error
BAD_FILES = {
    "truncated": (encoded(LARGE)[:-500], "cannot be read"),
    "no image": (b"<svg/>", "SVG"),
    "16-bit grey": (encoded(Image.fromarray(np.zeros((5, 6), np.uint16))), "8 bits"),
    "16-bit colour": (deep_png(2, 3), "8 bits"),
    "16-bit alpha": (deep_png(6, 4), "8 bits"),
    "alpha": (encoded(Image.new("RGBA", (6, 5), (1, 2, 3, 254))), "transparent"),
    "frames": (encoded(FLAT, "tiff", save_all=True, append_images=[FLAT]), "frames"),
    "pipe": (None, "regular file"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_unusable_file_is_named(tmp_path, content, reason):
    path = tmp_path / "bad one.png"
    path.write_bytes(content) if content else os.mkfifo(path)
    message = error_of(read_images, [path], (1, 5, 6), 256)
    assert message.startswith(str(path)) and reason in message


def test_large_image_is_refused_before_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(LARGE)
    (tmp_path / "a.png").write_bytes(content[:60])  # the header only
    assert "more than 100 pixels" in error_of(read_images, [tmp_path / "a.png"], (1, 50, 60), 256)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_modes_become_grey_or_rgb(mode):
    expected = "L" if mode in ("1", "L", "LA") else "RGB"
    picture = PICTURES[0].convert(expected).convert(mode)  # LA and RGBA: opaque
    pixels = read_pixels(picture, "picture", to_pixels)
    assert torch.equal(pixels, to_pixels(picture.convert(expected)))
    assert len(pixels) == (1 if expected == "L" else 3)


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "tiff", "bmp"])
def test_orientation_is_applied_to_files_and_opened_images(tmp_path, kind):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    paths = [tmp_path / f"{index}.{kind}" for index in range(12)]
    turned = PIXELS if kind == "bmp" else PIXELS.swapaxes(1, 2).copy()  # bmp has no tag
    for pixels, path in zip(turned, paths, strict=True):
        Image.fromarray(pixels).save(path, exif=exif)
    right = [ImageOps.exif_transpose(Image.open(path)) for path in paths]
    expected = torch.from_numpy(np.stack([*map(np.array, right)])).permute(0, 3, 1, 2)
    files = [Image.open(path) for path in paths]
    copies = [Image.open(path).convert("RGB") for path in paths]
    for given in (paths, map(str, paths), files, files, copies):
        assert torch.equal(read_images(given, SHAPE, 256), expected)


def test_images_of_another_format_are_converted_on_request():
    form = GREY.image_shape, GREY.num_levels
    message = error_of(read_images, PICTURES[:1], *form)
    assert message.startswith("image 0: ") and "resize" in message
    (levels,) = read_images(PICTURES[:1], *form, resize=True)
    assert levels.shape == GREY.image_shape and int(levels.max()) < GREY.num_levels
    assert torch.equal(read_images(PICTURES, SHAPE, 256, resize=True), TENSOR)  # as they are


def test_photo_is_cropped_and_averaged():
    # a checkerboard, with margins outside of the filter's support
    pixels = np.zeros((64, 128), np.uint8)
    pixels[:, 16:112] = np.indices((64, 96)).sum(0) % 2 * 254
    small = square_pixels(Image.fromarray(pixels), 8)
    assert small.shape == (1, 8, 8) and (small[:, 1:-1, 1:-1].int() - 127).abs().max() <= 2


@pytest.mark.parametrize("num_levels", [2, 17, 256])
def test_saved_samples_need_no_conversion(num_levels):
    levels = (torch.arange(64).view(1, 8, 8) * 4 % num_levels).byte()
    saved = to_pil(to_uint8(to_display(levels, num_levels)[None])[0])
    assert torch.equal(exact_levels(saved, (1, 8, 8), num_levels), levels)


def test_pixels_of_files_are_values_of_levels():
    dark = [Image.new("L", (8, 8), 16)] * 2  # level 1 of 17, not level 16
    assert (read_images(dark, (1, 8, 8), 17) == 1).all()
    black_white = [Image.fromarray(x[0].numpy() > 8) for x in LEVELS]
    assert torch.equal(read_images(black_white, (1, 8, 8), 2), (LEVELS > 8).byte())
    raw = [Image.fromarray(x[0].numpy()) for x in LEVELS]
    assert "8x8 grey" in error_of(read_images, raw, (1, 8, 8), 17)
    assert read_images(raw, (1, 8, 8), 17, resize=True).max() == 1


def test_image_files_are_not_arguments_of_a_model(tmp_path):
    ebm, detector = EBM.from_pretrained("digits"), AnomalyDetector.from_pretrained("digits")
    calls = [ebm.log_prob, detector.p_value, lambda x: train(x, tmp_path / "run")]
    for images in (["a.png"], PICTURES, LEVELS.tolist()):
        for call in calls:
            assert "read_images" in error_of(call, images) and not list(tmp_path.iterdir())
    for single in (PICTURES[0], tmp_path, [], None, 5):
        assert "list" in error_of(read_images, single, SHAPE, 256)


@pytest.mark.parametrize("shape", [(1, 10**6, 10**6), (1, 0, 0), (1, -8, 8), (8, 8), None, 8])
def test_invalid_image_shape_is_refused(shape):
    assert "image_shape" in error_of(read_images, [FLAT], shape, 17, resize=True)


@pytest.mark.parametrize("size", [(0, 8), (8, 0)])
def test_empty_image_is_refused(size):
    images = [FLAT, Image.new("L", size)]
    assert error_of(read_images, images, (1, 8, 8), 17, True).startswith("image 1: The image is e")
