"""Splits by name: added files, shares, and sets that are too small."""

import os
from concurrent.futures import wait
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from conftest import error_of, save_picture
from PIL import Image

from ebm_app.data import lazy
from ebm_app.data.images import ImageData, load_images
from ebm_app.data.lazy import LazyImages
from ebm_app.data.splits import HELD_OUT, SPLITS, Labelled, split_by_name
from ebm_app.utils.errors import UserError

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


def test_added_and_changed_files_move_no_file(tmp_path):
    first = split_of(fill(tmp_path / "first"))
    assert len(first) == 80 and set(first.values()) == set(SPLITS)
    second = fill(tmp_path / "second", PICTURES[::-1])
    fill(second, PICTURES[:9], "added-{}.png")
    more = split_of(second)
    assert first.items() <= more.items() and len(more) == 89


def test_held_out_images_are_a_random_sample():
    """Also the first images of a split, although the files are sorted by their names."""
    images = torch.arange(4000, dtype=torch.int32).view(-1, 1, 1, 1)
    splits = split_by_name(Labelled(images, names=[f"{i:04d}.png" for i in range(4000)]))
    for name in HELD_OUT:
        own = splits[name].images.flatten()
        assert abs(len(own) - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5
        # the mean of 100 of 0..3999 has the standard error 4000 / sqrt(12 * 100)
        assert abs(own[:100].double().mean() - 1999.5) < 4 * 4000 / 1200**0.5
    everything = torch.cat([part.images.flatten() for part in splits.values()])
    assert torch.equal(everything.sort().values, torch.arange(4000, dtype=torch.int32))


@pytest.mark.parametrize("num", [1, 9])
def test_few_images_are_refused_with_their_number(tmp_path, num):
    fill(tmp_path, PICTURES[:num])
    assert f"found {num}" in error_of(load_images, f"folder:{tmp_path}")
    names = [f"{index}.png" for index in range(num)]
    images = Labelled(torch.from_numpy(PICTURES[:num, None]), names=names)
    assert f"got {num} images" in error_of(split_by_name, images)
    images = torch.from_numpy(PICTURES[:2, None])
    assert "at least 3 images, got 2" in error_of(ImageData.from_tensors, images, None, 256)


@pytest.mark.parametrize(("num", "held_out"), [(40, 4), (9, 2)])
def test_a_tenth_of_a_tensor_is_held_out(num, held_out):
    images = torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1)
    data = ImageData.from_tensors(images, None, 256)
    found, rest = (x.flatten().tolist() for x in (data.validation, data.train))
    assert sorted(found + rest) == list(range(num)) and len(found) == held_out


@pytest.mark.parametrize("size, ahead", [(1, 5), (4, 8), (6, 12)])
def test_batches_are_decoded_ahead_in_order(monkeypatch, size, ahead):
    reads, order = [], torch.randperm(80, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(lazy, "WORKERS", 1)
    monkeypatch.setattr(lazy, "AHEAD", 5)

    def read(index):
        reads.append(index)
        if index == order[9]:
            raise UserError(f"Cannot read '{index}.png'.")
        return torch.full((1, 1, 1), index)

    images, batches = LazyImages(read, torch.arange(80), (1, 1, 1)), order.split(size)
    for step in range(24 // size):
        is_bad = order[9] in batches[step]
        with pytest.raises(UserError, match=f"'{order[9]}.png'") if is_bad else nullcontext():
            assert torch.equal(images[batches[step]].flatten(), batches[step])
        images.prefetch(lambda later, begin=step + 1: batches[begin + later])
        wait([future for _, futures in images.pending for future in futures])
        assert reads == order[: (step + 1) * size + ahead].tolist()
    assert torch.equal(images[batches[0]].flatten(), batches[0])  # not the next batch
    assert reads[-size:] == batches[0].tolist() and not images.pending


@pytest.mark.parametrize(("limit", "value"), [("MEMORY", 0), ("FEW", 79)])
def test_large_folders_are_decoded_once(tmp_path, monkeypatch, capsys, limit, value):
    """Into a cache, unless it cannot be written or would fill the disk."""
    reads, open_ = [], Image.open
    monkeypatch.setattr("ebm_app.data.folder.read_image", lambda f: reads.append(f) or open_(f))
    folder, cache, file = fill(tmp_path / "images"), tmp_path / "cache", tmp_path / "file"
    file.touch()
    expected = load_images(f"folder:{folder}").train
    rows = torch.arange(len(expected))
    monkeypatch.setattr(lazy, limit, value)
    is_lazy = limit == "MEMORY"  # the first image is read for its size
    for place, share, num in ((file, 1, 80), (cache, 0, 80), (cache, 1, 80), (cache, 1, 0)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        monkeypatch.setattr(lazy, "DISK_SHARE", share)
        reads.clear()
        found = load_images(f"folder:{folder}").train
        assert isinstance(found, LazyImages) == is_lazy and len(reads) == num + is_lazy
        assert torch.equal(found[rows], expected)
        assert torch.equal(found[:5][rows[:5]], expected[:5])
        assert ("cannot cache images" in capsys.readouterr().err) == (place == file)
    os.utime(folder / "0.png")  # a changed file is another data set
    load_images(f"folder:{folder}")
    assert len(reads) >= 80
