"""Images of a user: arrays and their layout, image files and Pillow images, levels."""

import warnings

import numpy as np
import pytest
import torch
from conftest import error_of
from PIL import Image, ImageOps

from ebm_app import EBM, quantise, read_images, train
from ebm_app.anomaly import AnomalyDetector
from ebm_app.data.images import ImageData, load_images
from ebm_app.data.labels import sort_classes
from ebm_app.data.levels import checked_levels
from ebm_app.data.pictures import to_pixels

NUMBERS = np.random.RandomState(0)
PIXELS = NUMBERS.randint(0, 256, (12, 8, 6, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
PICTURES = [Image.fromarray(each) for each in PIXELS]
SHAPE = (3, 8, 6)
LEVELS = torch.from_numpy(NUMBERS.randint(0, 17, (12, 1, 8, 8)).astype(np.uint8))
LEVELS[0, 0, 0, 0] = 16


@pytest.mark.parametrize(
    "shape", [(3, 8, 6), (1, 28, 28), (4, 16, 16), (5, 32, 20), (8, 4, 4), (1, 1, 64), (3, 8, 3)]
)
def test_channels_are_first(shape):
    levels = torch.zeros(12, *shape, dtype=torch.uint8)
    for image_shape in (shape, None):
        assert torch.equal(checked_levels(levels.numpy(), image_shape, 256), levels)


@pytest.mark.parametrize("shape", [(8, 6, 3), (8, 6, 1), (16, 16, 4), (20, 16, 4), (16, 16, 2)])
def test_last_channels_are_refused(shape):
    images, first = np.zeros((12, *shape), np.uint8), (shape[2], *shape[:2])
    for image_shape in (first, None):
        for given, name in ((images, "transpose"), (torch.from_numpy(images), "permute")):
            message = error_of(checked_levels, given, image_shape, 256)
            assert f"got (12, {', '.join(map(str, shape))})" in message
            assert f"Move channels first with images.{name}(0, 3, 1, 2)." in message
    assert "permute" in error_of(ImageData.from_tensors, torch.from_numpy(images), None, 256)


def test_other_shapes_are_refused():
    for given, advice in (
        (TENSOR[:, 0], "images[None] for one image, or images[:, None] for grey images"),
        (TENSOR[0, 0], "got (8, 6)"),
        (TENSOR[:0], "at least one image"),
        (TENSOR[:, :1], "got (12, 1, 8, 6)"),
        (TENSOR.mT, "shape (N, 3, 8, 6), got (12, 3, 6, 8). Pass images of this shape."),
    ):
        assert advice in error_of(checked_levels, given, SHAPE, 256)


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
    shown = [Image.fromarray((x[0].numpy() * (255 / 16)).round().astype("uint8")) for x in levels]
    for images in (levels / 16, levels.numpy() / 16, read_images(shown, (1, 8, 8), 17)):
        assert torch.equal(ebm.log_prob(images, repeats=1), expected)
        assert np.array_equal(detector.p_value(images), p_value)
        assert torch.equal(ImageData.from_tensors(images, images, 17).train, levels)


def test_pixels_of_files_are_values_of_levels():
    dark = [Image.new("L", (8, 8), 16)] * 2  # level 1 of 17, not level 16
    assert (read_images(dark, (1, 8, 8), 17) == 1).all()
    black_white = [Image.fromarray(x[0].numpy() > 8) for x in LEVELS]
    assert torch.equal(read_images(black_white, (1, 8, 8), 2), (LEVELS > 8).byte())
    raw = [Image.fromarray(x[0].numpy()) for x in LEVELS]
    assert "'image 0' is 8x8 grey" in error_of(read_images, raw, (1, 8, 8), 17)
    assert read_images(raw, (1, 8, 8), 17, resize=True).max() == 1


def opened(tmp_path, pictures, kind="png", **options):
    """Save images; return their paths and the opened files."""
    paths = [tmp_path / f"{index}.{kind}" for index in range(len(pictures))]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path, **options)
    return paths, [Image.open(path) for path in paths]


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "tiff"])
def test_opened_images_are_read_as_their_paths(tmp_path, kind):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    turned = [Image.fromarray(each) for each in PIXELS.swapaxes(1, 2).copy()]
    paths, files = opened(tmp_path, turned, kind, exif=exif)
    right = [ImageOps.exif_transpose(Image.open(path)) for path in paths]
    expected = torch.from_numpy(np.stack([*map(np.array, right)])).permute(0, 3, 1, 2)
    assert expected.shape == TENSOR.shape
    copies = [Image.open(path).convert("RGB") for path in paths]
    for given in (paths, map(str, paths), files, files, copies):
        assert torch.equal(read_images(given, SHAPE, 256), expected)


def test_images_of_another_format_are_named_or_converted(tmp_path):
    paths, _ = opened(tmp_path, [*PICTURES[:2], PICTURES[2].resize((9, 20)).convert("L")])
    message = error_of(read_images, paths, SHAPE, 256)
    assert f"The image '{paths[2]}' is 9x20 grey, but the model expects 6x8 RGB" in message
    images = read_images(paths, torch.Size(SHAPE), 256, resize=True)
    assert torch.equal(images[:2], TENSOR[:2]) and images.dtype == torch.uint8
    fitted = ImageOps.fit(Image.open(paths[2]), (6, 8), Image.Resampling.BILINEAR)
    assert torch.equal(images[2], to_pixels(fitted, "fitted").expand(3, -1, -1))
    assert str(tmp_path / "none.png") in error_of(read_images, [tmp_path / "none.png"], SHAPE, 256)


def test_single_images_and_other_modes_are_refused(tmp_path):
    for picture in (Image.new("RGBA", (8, 8)), Image.new("HSV", (8, 8)), Image.new("F", (8, 8))):
        assert "'image 1'" in error_of(read_images, [PICTURES[0], picture], SHAPE, 256)
    for single in (PICTURES[0], tmp_path, str(tmp_path), [], [3], PIXELS):
        assert "Expected a list" in error_of(read_images, single, SHAPE, 256)
    assert "(C, H, W), got (8, 6)" in error_of(read_images, PICTURES, (8, 6), 256)
    assert "num_levels" in error_of(read_images, PICTURES, SHAPE, 1)


def test_labels_are_one_integer_per_image():
    one_hot = torch.tensor([[0, 1]] * 12)
    for labels, words in (
        (one_hot, "got torch.int64 of shape (12, 2)"),
        (torch.zeros(12), "got torch.float32"),
        (torch.full((12,), -1), "non-negative"),
    ):
        assert words in error_of(ImageData.from_tensors, TENSOR, None, 256, labels=labels)
    assert sort_classes(["b", "a"]) == ("b", "a")


def test_masks_and_sparse_tensors_are_refused():
    images = np.ma.masked_array(TENSOR.numpy(), TENSOR.numpy() > 250)
    assert "Pass a tensor or an array" in error_of(checked_levels, images, SHAPE, 256)
    full = np.ma.masked_array(TENSOR.numpy())
    assert torch.equal(checked_levels(full, SHAPE, 256), TENSOR)
    assert "sparse" in error_of(checked_levels, (TENSOR / 255).to_sparse(), SHAPE, 256)


def test_unused_levels_raise_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="highest level of the images is 16.*num_levels=17"):
        ImageData.from_tensors(LEVELS, None, 256)
    for index, image in enumerate(LEVELS.repeat(5, 1, 1, 1)):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{index}.png")
    with pytest.warns(UserWarning, match="num_levels=17"):
        load_images(f"folder:{tmp_path}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageData.from_tensors(LEVELS, None, 17)
        ImageData.from_tensors(LEVELS * 8, None, 256)


def test_continuous_images_are_quantised():
    images = torch.rand(2, 1, 8, 8)
    assert "call quantise(images, 17)" in error_of(checked_levels, images, (1, 8, 8), 17)
    assert checked_levels(quantise(images, 17), (1, 8, 8), 17).max() <= 16
