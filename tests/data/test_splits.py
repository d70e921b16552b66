"""Splits by content: copies, added files, shares, and sets that are too small."""

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
from ebm_app.data.lazy import LazyImages, content_hash, image_hashes
from ebm_app.data.splits import HELD_OUT, SPLITS, Labelled, split_by_content
from ebm_app.utils.errors import UserError

PICTURES = np.random.RandomState(0).randint(0, 256, (80, 4, 4)).astype(np.uint8)


def fill(folder, pictures=PICTURES, name="{}.png"):
    folder.mkdir(exist_ok=True)
    for index, picture in enumerate(pictures):
        save_picture(folder / name.format(index), picture)
    return folder


def split_of(folder):
    """Return hash -> split; each image is in one split only."""
    data, found = load_images(f"folder:{folder}"), {}
    for split in SPLITS:
        for image in image_hashes(data.split(split)).tolist():
            assert found.setdefault(image, split) == split
    return found


def test_added_copied_and_renamed_files_move_no_image(tmp_path):
    first = split_of(fill(tmp_path / "first"))
    assert len(first) == 80 and set(first.values()) == set(SPLITS)
    second = fill(tmp_path / "second", PICTURES[::-1], "renamed-{}.bmp")
    fill(second, PICTURES[:9], "copy-{}.png")
    fill(second, PICTURES[9:12, ..., None].repeat(3, 3), "grey copy in RGB {}.png")
    assert split_of(second) == first
    fill(second, 255 - PICTURES[:1], "added-{}.png")
    colour = np.random.RandomState(1).randint(0, 256, (1, 4, 4, 3)).astype(np.uint8)
    fill(second, colour, "added-in-colour-{}.png")
    more = split_of(second)
    assert first.items() <= more.items() and len(more) == 82


def test_shares_are_those_of_a_random_draw():
    images = torch.randint(256, (4000, 1, 2, 3), dtype=torch.uint8, generator=torch.manual_seed(0))
    splits = split_by_content(Labelled(images))
    for name in HELD_OUT:
        assert abs(len(splits[name].images) - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5
    assert sum(len(part.images) for part in splits.values()) == 4000


@pytest.mark.parametrize("num", [1, 5, 9])
def test_few_distinct_images_are_refused_with_their_number(tmp_path, num):
    fill(tmp_path, PICTURES[np.arange(60) % num])
    message = error_of(load_images, f"folder:{tmp_path}")
    assert "60 images" in message and f"{num} are distinct" in message
    images = torch.from_numpy(PICTURES)[:, None][torch.arange(60) % 2]
    assert "2 are distinct" in error_of(ImageData.from_tensors, images, None, 256)


@pytest.mark.parametrize(("num", "held_out"), [(40, 4), (9, 2)])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_tenth_is_held_out_with_its_copies(num, held_out, copies):
    images = torch.arange(num, dtype=torch.uint8).repeat(copies).view(-1, 1, 1, 1)
    data = ImageData.from_tensors(images, None, 256)
    found, rest = (x.flatten().tolist() for x in (data.validation, data.train))
    assert sorted(found + rest) == sorted(images.flatten().tolist())
    assert not {*found} & {*rest} and held_out <= len({*found}) <= copies * held_out


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

    images, batches = LazyImages(read, torch.arange(80), (1, 1, 1), order), order.split(size)
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
    rows, hashes = torch.arange(len(expected)), [content_hash(x.numpy()) for x in expected]
    monkeypatch.setattr(lazy, limit, value)
    is_lazy = limit == "MEMORY"  # the first image is read for its size
    for place, share, num in ((file, 1, 80), (cache, 0, 80), (cache, 1, 80), (cache, 1, 0)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        monkeypatch.setattr(lazy, "DISK_SHARE", share)
        reads.clear()
        found = load_images(f"folder:{folder}").train
        assert isinstance(found, LazyImages) == is_lazy and len(reads) == num + is_lazy
        assert torch.equal(found[rows], expected) and image_hashes(found).tolist() == hashes
        assert image_hashes(found[:5]).tolist() == hashes[:5]
        assert ("cannot cache images" in capsys.readouterr().err) == (place == file)
    os.utime(folder / "0.png")  # a changed file is another data set
    load_images(f"folder:{folder}")
    assert len(reads) >= 80
