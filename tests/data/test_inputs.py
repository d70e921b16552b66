"""Images of Python objects: layouts, Pillow images and files, data sets, levels."""

import warnings

import numpy as np
import pytest
import torch
from conftest import error_of
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image, ImageOps
from torch.utils.data import Subset, TensorDataset

from ebm_app import EBM, quantise
from ebm_app.anomaly import AnomalyDetector
from ebm_app.data.images import ImageData, load_images
from ebm_app.data.inputs import as_images
from ebm_app.data.labels import sort_classes
from ebm_app.likelihood.bits import checked_levels

NUMBERS = np.random.RandomState(0)
PIXELS = NUMBERS.randint(0, 256, (12, 8, 6, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
PICTURES = [Image.fromarray(each) for each in PIXELS]
SHAPE = (3, 8, 6)
LEVELS = torch.from_numpy(NUMBERS.randint(0, 17, (12, 1, 8, 8)).astype(np.uint8))
LEVELS[0, 0, 0, 0] = 16


def array(*shape):
    return np.zeros((12, *shape), np.uint8)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((3, 8, 6), 3),
        ((8, 6, 3), 3),
        ((8, 6, 1), 1),
        ((1, 28, 28), 1),
        ((4, 16, 16), 4),
        ((5, 32, 20), 5),
        ((8, 4, 4), 8),
        ((1, 1, 64), 1),
        ((3, 3, 3), 3),
    ],
)
def test_layout_is_read_where_only_one_is_possible(shape, channels):
    assert as_images(array(*shape)).images.shape[1] == channels


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((16, 16, 4), "alpha. Remove it: images[..., :3]"),
        ((20, 16, 4), "images[..., :3]"),
        ((16, 16, 2), "images[..., :1]"),
        ((16, 16, 8), "permute(0, 3, 1, 2)"),
        ((3, 8, 3), "permute(0, 3, 1, 2)"),
        ((1, 28, 3), "permute(0, 3, 1, 2)"),
        ((2, 8, 3), "permute(0, 3, 1, 2)"),
        ((32, 3, 20), "permute(0, 3, 1, 2)"),  # (H, W, C, N)
        ((8, 6), "images[None]"),
    ],
)
def test_other_layouts_are_refused_with_advice(shape, advice):
    assert advice in error_of(as_images, array(*shape))
    assert advice in error_of(ImageData.from_tensors, array(*shape), None, 256)


def test_layout_follows_the_shape_of_the_model():
    for given in (PIXELS, PIXELS / 255, TENSOR, [*PIXELS], [*TENSOR], PICTURES, tuple(PICTURES)):
        assert torch.equal(checked_levels(given, SHAPE, 256), TENSOR)
    four = NUMBERS.randint(0, 256, (2, 5, 6, 4)).astype(np.uint8)
    expected = torch.from_numpy(four).permute(0, 3, 1, 2)
    assert torch.equal(checked_levels(four, (4, 5, 6), 256), expected)
    alpha = np.concatenate([PIXELS, PIXELS[..., :1]], 3)
    assert "alpha channel: images[..., :3]" in error_of(checked_levels, alpha, SHAPE, 256)
    alpha = alpha.transpose(0, 3, 1, 2)
    assert "alpha channel: images[:, :3]" in error_of(checked_levels, alpha, SHAPE, 256)
    assert "got (12, 6, 8, 3)" in error_of(checked_levels, PIXELS.swapaxes(1, 2), SHAPE, 256)
    narrow = [picture.resize((3, 8)) for picture in PICTURES]  # known to be (3, 8, 3)
    assert as_images(narrow).images.shape == (12, 3, 8, 3)


def test_likelihood_and_detector_read_the_same_images():
    ebm, detector = EBM.from_pretrained("digits"), AnomalyDetector.from_pretrained("digits")
    shown = [Image.fromarray((x[0].numpy() * (255 / 16)).round().astype("uint8")) for x in LEVELS]
    given = [LEVELS.permute(0, 2, 3, 1), LEVELS / 16, shown, TensorDataset(LEVELS)]
    expected, p_value = ebm.log_prob(LEVELS), detector.p_value(LEVELS)
    for images in given:
        assert torch.equal(ebm.log_prob(images), expected)
        assert np.array_equal(detector.p_value(images), p_value)
        assert torch.equal(ImageData.from_tensors(images, images, 17).train, LEVELS)
    assert np.array_equal(detector.p_value(LEVELS.flatten(1)), p_value)
    assert "type Image" in error_of(detector.p_value, Image.new("L", (64, 12)))


def test_pixels_of_files_are_values_of_levels():
    dark = [Image.new("L", (8, 8), 16)] * 2  # level 1 of 17, not level 16
    assert (checked_levels(dark, (1, 8, 8), 17) == 1).all()
    black_white = [Image.fromarray(x[0].numpy() > 8) for x in LEVELS]
    found = as_images(black_white, 2).images
    assert torch.equal(found, (LEVELS > 8).byte())
    raw = [Image.fromarray(x[0].numpy()) for x in LEVELS]
    assert "'image 0' has pixels other" in error_of(as_images, raw, 17)


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
    features = Features({"image": ImageFeature()})
    table = Dataset.from_dict({"image": [*map(str, paths)]}, features=features)
    copies = [Image.open(path).convert("RGB") for path in paths]
    for given in (paths, [*map(str, paths)], files, files, copies, table):
        assert torch.equal(as_images(given).images, expected)


def test_single_images_and_other_modes_are_refused(tmp_path):
    for picture in (Image.new("RGBA", (8, 8)), Image.new("HSV", (8, 8)), Image.new("F", (8, 8))):
        assert "'image 1'" in error_of(as_images, [PICTURES[0], picture])
    for single in (PICTURES[0], tmp_path, str(tmp_path), None, 3, {"image": PIXELS}):
        assert f"type {type(single).__name__} " in error_of(as_images, single)


class Items(torch.utils.data.Dataset):
    """A torch data set of a list of items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Folders(Items):
    """A data set of class folders, sorted as text as by torchvision."""

    classes = sorted(map(str, range(11)))


def test_items_of_data_sets_are_read_as_arrays(tmp_path):
    paths, _ = opened(tmp_path, PICTURES)
    pairs = [[image / 255, index] for index, image in enumerate(TENSOR)]
    for items in (PICTURES, [*TENSOR], [*PIXELS], pairs, [*map(tuple, pairs)], paths):
        assert torch.equal(as_images(Items(items)).images, TENSOR)
    binary = (LEVELS > 8).float()
    assert torch.equal(as_images(Items(binary), 2).images, binary.byte())
    table = Dataset.from_dict({"image": PICTURES}, Features({"image": ImageFeature()}))
    changed = table.with_transform(lambda batch: {"image": PICTURES[:1] * len(batch["image"])})
    assert "has a transform" in error_of(as_images, changed)


def test_classes_of_folders_are_sorted_as_numbers():
    labels = [index % 11 for index in range(12)]
    names = [Folders.classes[label] for label in labels]
    data = Folders([*zip(PICTURES, labels, strict=True)])
    for given in (data, Subset(data, range(12))):
        _, found, _, classes = as_images(given)
        assert classes == tuple(map(str, range(11)))
        assert found.tolist() == [*map(int, names)]
    assert sort_classes(["b", "a"]) == ("b", "a")
    one_hot = Items([(picture, [0, 1]) for picture in PICTURES])
    assert "got torch.int64 of shape (12, 2)" in error_of(
        ImageData.from_tensors, one_hot, None, 256
    )


def test_masks_and_sparse_tensors_are_refused():
    images = np.ma.masked_array(TENSOR.numpy(), TENSOR.numpy() > 250)
    for given in (images, [*images], [*images.tolist()]):
        assert "Pass a tensor or an array" in error_of(as_images, given)
    assert torch.equal(as_images(np.ma.masked_array(TENSOR.numpy())).images, TENSOR)
    assert "sparse" in error_of(as_images, (TENSOR / 255).to_sparse())


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
