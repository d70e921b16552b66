"""The reader of image files: formats, modes, files that cannot be used, conversion to levels."""

import io
import os

import numpy as np
import pytest
import torch
from conftest import GREY, deep_png, encoded, error_of
from PIL import Image, ImageOps

from ebm_app import EBM, read_images, train
from ebm_app.anomaly import AnomalyDetector
from ebm_app.config import EBMConfig
from ebm_app.data.levels import to_display
from ebm_app.data.pictures import (
    exact_levels,
    fitted_levels,
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
    "no image": (b"<svg/>", "intact PNG, JPEG, WebP, BMP or TIFF file; save others, such as SVG"),
    "16-bit grey": (encoded(Image.fromarray(np.zeros((5, 6), np.uint16))), "8 bits"),
    "16-bit colour": (deep_png(2, 3), "8 bits"),
    "16-bit alpha": (deep_png(6, 4), "8 bits"),
    "alpha": (encoded(Image.new("RGBA", (6, 5), (1, 2, 3, 254))), "transparent"),
    "frames": (encoded(FLAT, "tiff", save_all=True, append_images=[FLAT]), "several frames"),
    "pipe": (None, "not a regular file"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_unusable_file_is_named(tmp_path, content, reason):
    path = tmp_path / "bad one.png"
    path.write_bytes(content) if content else os.mkfifo(path)
    message = error_of(read_images, [path], (1, 5, 6), 256)
    assert message.startswith(str(path)) and reason in message


@pytest.mark.parametrize("name", ["16-bit grey", "16-bit colour", "alpha", "frames"])
def test_opened_image_is_refused_like_its_file(tmp_path, name):
    content, reason = BAD_FILES[name]
    (tmp_path / "a.png").write_bytes(content)
    decoded = Image.open(tmp_path / "a.png")
    decoded.load()
    for picture in (Image.open(io.BytesIO(content)), decoded):
        message = error_of(read_images, [FLAT, picture], (1, 5, 6), 256)
        assert message.startswith("image 1: ") and reason in message


def test_large_image_is_refused_before_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(LARGE)
    (tmp_path / "a.png").write_bytes(content[:60])  # the header only
    assert "more than 100 pixels" in error_of(read_images, [tmp_path / "a.png"], (1, 50, 60), 256)


def test_opened_and_missing_files_are_named():
    for picture in (Image.new("RGBA", (8, 8)), Image.new("HSV", (8, 8)), Image.new("F", (8, 8))):
        assert error_of(read_images, [PICTURES[0], picture], SHAPE, 256).startswith("image 1: ")
    assert "none.png: Cannot read" in error_of(read_images, ["none.png"], SHAPE, 256)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_modes_become_grey_or_rgb(mode):
    expected = "L" if mode in ("1", "L", "LA") else "RGB"
    picture = PICTURES[0].convert(expected).convert(mode)  # LA and RGBA: opaque
    pixels = read_pixels(picture, "picture", to_pixels)
    assert torch.equal(pixels, to_pixels(picture.convert(expected)))
    assert len(pixels) == (1 if expected == "L" else 3)


def test_first_frame_of_a_phone_photo_is_read(tmp_path):
    Image.new("L", (16, 16), 250).save(
        tmp_path / "a.jpg", "MPO", save_all=True, append_images=[Image.new("L", (16, 16))]
    )
    assert read_images([tmp_path / "a.jpg"], (1, 16, 16), 256).min() >= 248


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


PHOTO = Image.fromarray(NUMBERS.randint(0, 256, (20, 30, 3), dtype=np.uint8))
SMALL = PHOTO.resize((8, 8))
COLOUR = EBMConfig("folder:photos", (3, 8, 8), 256)
#: name -> image, format, words of the error without ``resize``
CASES = {
    "another size": (PHOTO, COLOUR, "30x20 RGB, but the model expects 8x8 RGB with 256 levels"),
    "colour for grey": (SMALL, EBMConfig("x", (1, 8, 8), 256), "8x8 RGB"),
    "grey for colour": (SMALL.convert("L"), COLOUR, "8x8 grey, but the model expects 8x8 RGB"),
    "more levels": (SMALL.convert("L"), GREY, "8x8 grey with 17 levels"),
    "all": (PHOTO, GREY, "30x20 RGB, but the model expects 8x8 grey with 17 levels"),
}


@pytest.mark.parametrize(("picture", "config", "words"), CASES.values(), ids=CASES.keys())
def test_images_of_another_format_are_converted_on_request(picture, config, words):
    form = config.image_shape, config.num_levels
    message = error_of(read_images, [picture], *form)
    assert message.startswith("image 0: ") and words in message and "Enable resize" in message
    (levels,) = read_images([picture], *form, resize=True)
    assert levels.shape == config.image_shape and int(levels.max()) < config.num_levels
    assert torch.equal(levels, fitted_levels(picture, *form))
    if config == COLOUR and picture is PHOTO:  # as for training
        assert torch.equal(levels, square_pixels(PHOTO, 8))


def test_photo_is_cropped_and_averaged():
    # a checkerboard, with margins outside of the filter's support
    pixels = np.zeros((64, 128), np.uint8)
    pixels[:, 16:112] = np.indices((64, 96)).sum(0) % 2 * 254
    small = square_pixels(Image.fromarray(pixels), 8)
    assert small.shape == (1, 8, 8) and (small[:, 1:-1, 1:-1].int() - 127).abs().max() <= 2


def test_images_of_the_same_format_are_unchanged():
    for convert in (exact_levels, fitted_levels):
        assert torch.equal(convert(SMALL, (3, 8, 8), 256), to_pixels(SMALL))
    assert torch.equal(read_images(PICTURES, torch.Size(SHAPE), 256, resize=True), TENSOR)


@pytest.mark.parametrize("num_levels", [2, 17, 255, 256])
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


def test_arguments_of_read_images_are_checked(tmp_path):
    for single in (PICTURES[0], tmp_path, str(tmp_path), [], [3], PIXELS):
        assert "Expected a list" in error_of(read_images, single, SHAPE, 256)
    assert "(C, H, W), got (8, 6)" in error_of(read_images, PICTURES, (8, 6), 256)
    assert "got 2 channels" in error_of(read_images, PICTURES, (2, 8, 6), 256)
    assert "num_levels" in error_of(read_images, PICTURES, SHAPE, 1)


def test_only_arrays_are_images(tmp_path):
    ebm, detector = EBM.from_pretrained("digits"), AnomalyDetector.from_pretrained("digits")
    calls = [ebm.log_prob, ebm.likelihood, ebm.encode, detector.fit, detector.p_value]
    calls += [lambda x: train(x, tmp_path / "run"), lambda x: train(LEVELS, tmp_path / "run", x)]
    for images in (["a.png"], PICTURES, "a.png", PICTURES[0], [*LEVELS], LEVELS.tolist(), ()):
        for call in calls:
            message = error_of(call, images)
            assert f"got {type(images).__name__}. Read image files with ebm_app" in message
    assert not list(tmp_path.iterdir())


def test_likelihood_and_detector_read_the_same_images():
    ebm, detector = EBM.from_pretrained("digits"), AnomalyDetector.from_pretrained("digits")
    levels = LEVELS[:3]
    expected, p_value = ebm.log_prob(levels, repeats=1), detector.p_value(levels)
    shown = [to_pil(each) for each in to_uint8(levels / 16)]
    for images in (levels / 16, levels.numpy() / 16, read_images(shown, (1, 8, 8), 17)):
        assert torch.equal(ebm.log_prob(images, repeats=1), expected)
        assert np.array_equal(detector.p_value(images), p_value)
