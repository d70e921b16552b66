"""Splits by name: added files, shares, and sets that are too small."""

import numpy as np
import pytest
import torch
from conftest import error_of, save_picture

from ebm_app.data.images import ImageData, load_images
from ebm_app.data.splits import HELD_OUT, SPLITS, named_splits, split_by_name

PICTURES = np.random.RandomState(0).randint(0, 256, (80, 4, 4)).astype(np.uint8)


def fill(folder, pictures=PICTURES, name="{}.png"):
    folder.mkdir(exist_ok=True)
    for index, picture in enumerate(pictures):
        save_picture(folder / name.format(index), picture)
    return folder


def split_of(folder):
    """Return file name -> split; each file is in one split only."""
    data = load_images(f"folder:{folder}")
    pairs = [(name, s) for s, own in zip(SPLITS, data.names, strict=True) for name in own]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def test_split_of_a_name_is_fixed(tmp_path):
    split = split_of(fill(tmp_path))
    indices = {kind: {i for i in range(80) if split[f"{i}.png"] == kind} for kind in HELD_OUT}
    assert indices["test"] == {0, 17, 23, 57}
    assert indices["validation"] == {25, 33, 44, 59, 61, 64, 65, 67, 76}


def test_split_is_stable_when_files_are_added(tmp_path):
    first = split_of(fill(tmp_path / "first"))
    assert len(first) == 80 and set(first.values()) == set(SPLITS)
    second = fill(tmp_path / "second", PICTURES[::-1])
    fill(second, PICTURES[:9], "added-{}.png")
    more = split_of(second)
    assert first.items() <= more.items() and len(more) == 89


def test_held_out_images_are_a_random_sample():
    """Also the first images of a split, although the files are sorted by their names."""
    splits = split_by_name([f"{i:04d}.png" for i in range(4000)])
    for name in HELD_OUT:
        own = torch.tensor(splits[name])
        assert abs(len(own) - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5
        # the mean of 100 of 0..3999 has the standard error 4000 / sqrt(12 * 100)
        assert abs(own[:100].double().mean() - 1999.5) < 4 * 4000 / 1200**0.5
    assert sorted(sum(splits.values(), [])) == list(range(4000))


def test_splits_have_one_name_each():
    assert named_splits(["Dev", "train", "x"]) == {"validation": "Dev", "train": "train"}
    assert "validation has several names: dev, val." in error_of(named_splits, ["val", "dev"])


@pytest.mark.parametrize("num", [1, 9])
def test_few_images_are_refused_with_their_number(tmp_path, num):
    fill(tmp_path, PICTURES[:num])
    assert f"found {num}" in error_of(load_images, f"folder:{tmp_path}")
    names = [f"{index}.png" for index in range(num)]
    assert f"got {num} images" in error_of(split_by_name, names)
    images = torch.from_numpy(PICTURES[:2, None])
    assert "at least 3 images, got 2" in error_of(ImageData.from_tensors, images, None, 256)


@pytest.mark.parametrize(("num", "held_out"), [(40, 4), (9, 2)])
def test_tenth_of_a_tensor_is_held_out(num, held_out):
    images = torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1)
    data = ImageData.from_tensors(images, None, num)
    found, rest = (x.flatten().tolist() for x in (data.validation, data.train))
    assert sorted(found + rest) == list(range(num)) and len(found) == held_out
