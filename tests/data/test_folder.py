"""Folders of image files: splits, labels, formats, and files that cannot be used."""

import io
import os
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import error_of, save_picture
from PIL import Image

from ebm_app import read_images
from ebm_app.config import EBMConfig
from ebm_app.data.images import load_images
from ebm_app.evaluation.held_out import labels_for
from ebm_app.training.build import make_config
from ebm_app.training.recipes import recipe
from ebm_app.training.settings import with_settings
from ebm_app.utils.errors import UserError

SPLITS = ("train", "validation", "test")


def noise_image(size, channels, seed):
    shape = (size[1], size[0], channels)[: 2 if channels == 1 else 3]
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, shape, dtype=np.uint8))


def fill(folder, number=10, size=(6, 5), channels=1, suffix=".png", seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(number):
        noise_image(size, channels, seed + i).save(folder / f"{i:03d}{suffix}")
    return folder


def load_folder(path, resolution=None):
    return load_images(f"folder:{path}", resolution=resolution)


def all_images(path, resolution=None):
    data = load_folder(path, resolution)
    return torch.cat([data.split(split) for split in SPLITS])


def test_nested_images_are_split(tmp_path):
    fill(tmp_path / "a" / "deep", 32, channels=3, seed=100)
    fill(tmp_path / "b", 43, channels=3, suffix=".bmp")
    data = load_folder(tmp_path)
    assert data.num_levels == 256 and data.image_shape == (3, 5, 6)
    assert sum(map(len, data.names)) == 75
    for split, names in zip(SPLITS, data.names, strict=True):
        pixels = np.stack([np.asarray(Image.open(tmp_path / file)) for file in names])
        assert torch.equal(data.split(split), torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_all_formats_are_read(tmp_path):
    suffixes = ("png", "jpg", "jpeg", "bmp", "webp", "tif", "tiff", "PNG", "JPG", "Tif")
    for i in range(50):
        Image.new("L", (16, 16), 5 * i).save(tmp_path / f"{i}.{suffixes[i % len(suffixes)]}")
    photograph = Image.new("L", (16, 16), 250)
    # a phone's JPEG with a second frame, which is ignored
    photograph.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[photograph])
    levels = all_images(tmp_path).flatten(1).sort(0).values
    assert len(levels) == 51  # RGB, as WebP files are
    assert (levels.int() - 5 * torch.arange(51)[:, None]).abs().max() <= 2
    Image.new("L", (3, 3)).save(tmp_path / "other.gif")
    assert "'other.gif'" in error_of(load_folder, tmp_path)


@pytest.mark.parametrize("mode, channels", [("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3)])
def test_one_colour_file_makes_all_images_rgb(tmp_path, mode, channels):
    fill(tmp_path, 60)
    kind = "RGB" if channels == 3 else "L"
    image = noise_image((6, 5), 3, seed=50).convert(kind).convert(mode)  # LA and RGBA: opaque
    image.save(tmp_path / "zz.png")
    expected = np.asarray(image.convert(kind)).reshape(5, 6, channels)
    everything = all_images(tmp_path)
    is_it = (everything == torch.from_numpy(expected.copy()).permute(2, 0, 1)).flatten(1).all(1)
    assert everything.shape[1] == channels and is_it.sum() == 1
    assert (everything[~is_it] == everything[~is_it][:, :1]).all(), "grey files stay grey"


@pytest.mark.parametrize("names", [("train", "valid", "test"), ("Train", "DEV", "Test")])
def test_split_folders_are_the_splits(tmp_path, names):
    for name, number in zip(names, (60, 2, 3), strict=True):
        fill(tmp_path / name, number)
    data = load_folder(tmp_path)
    for split, number in zip(SPLITS, (60, 2, 3), strict=True):
        expected = [np.asarray(noise_image((6, 5), 1, seed=i)) for i in range(number)]
        assert np.array_equal(data.split(split)[:, 0], expected)
    assert data.labels is None
    fill(tmp_path / "else", 1)
    assert "000.png" in error_of(load_folder, tmp_path)


def test_missing_split_is_held_out_of_the_training_images(tmp_path):
    fill(tmp_path / "train", 60)
    assert len(load_folder(tmp_path).train) < 55
    fill(tmp_path / "val", 3, seed=100)
    data = load_folder(tmp_path)
    assert len(data.validation) == 3 and len(data.train) + len(data.test) == 60
    assert len(data.test) >= 2 and all(name.startswith("train/") for name in data.names[2])
    fill(tmp_path / "dev", 3, seed=200)
    assert "Split validation has several names: dev, val" in error_of(load_folder, tmp_path)
    assert "does not exist" in error_of(load_folder, tmp_path / "absent")
    assert "found 3" in error_of(load_folder, tmp_path / "val")


def test_hidden_files_are_ignored(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee", 30, seed=50)
    for name in (".ipynb_checkpoints", "__MACOSX", "ant/.cache"):
        fill(tmp_path / name, 2, size=(3, 3))
    (tmp_path / "bee" / "._000.png").write_bytes(b"finder")
    (tmp_path / "Thumbs.db").write_bytes(b"explorer")
    data = load_folder(tmp_path)
    assert data.num_classes == 2 and sum(map(len, data.names)) == 60
    assert data.summary()["classes"] == {"ant": 30, "bee": 30}
    text = data.describe()
    assert all(part in text for part in ("1x5x6", "ant 30", f"{len(data.train)} train"))


def test_classes_are_matched_by_name(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee", 30, seed=50)
    data = load_folder(tmp_path)
    labels = data.split_labels("train")
    model = EBMConfig(
        "folder:other", (1, 5, 6), 256, num_classes=3, class_names=("bee", "ant", "x")
    )
    assert torch.equal(labels_for(model, data, "train"), 1 - labels)
    assert torch.equal(labels_for(replace(model, class_names=()), data, "train"), labels)
    unknown = replace(data, labels=(torch.full_like(labels, -1), *data.labels[1:]))
    assert (labels_for(model, unknown, "train") == -1).all()
    with pytest.raises(UserError, match="no class 'ant', only bee, cow"):
        labels_for(replace(model, num_classes=2, class_names=("bee", "cow")), data, "train")
    base = recipe(data.name, data.image_shape, data.num_levels)
    labelled = make_config(with_settings(base, {"classes": "all"}), data)
    assert labelled.classes() == ("ant", "bee") and not make_config(base, data).classes()


def test_ambiguous_folders_are_reported(tmp_path):
    fill(tmp_path / "one" / "ant", 30)
    fill(tmp_path / "one" / "bee" / "deep", 30, seed=50)
    fill(tmp_path / "linked", 3)
    (tmp_path / "one" / "cat").symlink_to(tmp_path / "linked")
    data = load_folder(tmp_path / "one")
    assert data.labels is None and sum(map(len, data.names)) == 60
    assert "label None" in data.describe()
    fill(tmp_path / "two" / "images", 30)
    fill(tmp_path / "two" / "masks", 30, seed=50)
    assert "masks" in error_of(load_folder, tmp_path / "two")


def test_cmyk_is_converted_to_rgb(tmp_path):
    fill(tmp_path, 60, channels=3)
    image = Image.new("CMYK", (6, 5), (0, 255, 255, 0))
    image.save(tmp_path / "zz.jpg", quality=100)
    everything = all_images(tmp_path).int()
    red = torch.tensor([255, 0, 0]).view(3, 1, 1)
    assert ((everything - red).abs() < 8).flatten(1).all(1).sum() == 1


@pytest.mark.parametrize("splits", [("train", "validation", "test"), ("",)])
def test_class_folders_give_labels(tmp_path, splits):
    for split in splits:
        for name, value in (("ant", 10), ("bee", 200)):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for index in range(30):
                save_picture(folder / f"{index}.png", np.full((4, 4), value + index))
    data = load_folder(tmp_path)
    assert data.num_classes == 2
    for levels, labels in zip((data.train, data.validation, data.test), data.labels, strict=True):
        assert torch.equal(labels, (levels[:, 0, 0, 0] >= 200).long())
    save_picture(tmp_path / splits[0] / "alone.png", np.full((4, 4), 1))
    assert load_folder(tmp_path).labels is None


def test_mixed_sizes_need_a_resolution(tmp_path):
    fill(tmp_path, 60, size=(12, 8))
    # a checkerboard, with margins outside of the filter's support
    pixels = np.zeros((64, 128), np.uint8)
    pixels[:, 16:112] = np.indices((64, 96)).sum(0) % 2 * 254
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    message = error_of(load_folder, tmp_path)
    assert all(part in message for part in ("12x8", "wide.png", "128x64", "--resolution N"))
    everything = all_images(tmp_path, resolution=8)
    assert everything.shape[1:] == (1, 8, 8)
    # antialiased: the mean of 0 and 254
    assert ((everything[..., 1:-1, 1:-1].int() - 127).abs() <= 2).flatten(1).all(1).sum() == 1


def encoded(image, kind="png", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


GREY, FORM = Image.new("L", (6, 5), 7), ((1, 5, 6), 256)
#: A 16-bit PNG, whose colours Pillow converts to 8 bits
DEEP = encoded(Image.new("RGB", (6, 5)))[:8]
for kind, data in (
    (b"IHDR", struct.pack(">IIBBBBB", 6, 5, 16, 2, 0, 0, 0)),
    (b"IDAT", zlib.compress((b"\0" + bytes(6 * 6)) * 5)),
    (b"IEND", b""),
):
    DEEP += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
BAD_FILES = {
    "truncated": (encoded(noise_image((60, 50), 1, 0))[:-500], "Cannot read"),
    "16-bit grey": (encoded(Image.fromarray(np.zeros((5, 6), np.uint16))), "8 bits"),
    "16-bit colour": (DEEP, "8 bits"),
    "alpha": (encoded(Image.new("RGBA", (6, 5), (1, 2, 3, 254))), "transparent"),
    "pipe": (None, ""),
    "frames": (encoded(GREY, "tiff", save_all=True, append_images=[GREY]), "several frames"),
}


@pytest.mark.parametrize("content, reason", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_unusable_file_is_named(tmp_path, content, reason):
    path = fill(tmp_path, 60) / "bad one.png"
    path.write_bytes(content) if content else os.mkfifo(path)
    message = error_of(load_folder, tmp_path)
    assert "bad one.png" in message and reason in message
    if content:  # a Pillow image is read as its file
        message = error_of(read_images, [GREY, Image.open(io.BytesIO(content))], *FORM)
        assert "'image 1'" in message and reason in message
    if content == DEEP:
        decoded = Image.open(path)
        decoded.load()
        assert reason in error_of(read_images, [decoded], *FORM)
