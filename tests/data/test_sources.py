"""Images from Python objects and Hugging Face, in memory or decoded on demand."""

import numpy as np
import pytest
import torch
from conftest import error_of
from PIL import Image
from runs import SMALL, equal_tensors, weights_of

from ebm_app import train
from ebm_app.data import lazy
from ebm_app.data.images import ImageData, image_digest, load_images
from ebm_app.data.lazy import LazyImages, image_hashes
from ebm_app.data.sources import as_images

PIXELS = np.random.RandomState(0).randint(0, 256, (60, 8, 8, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
PICTURES = [Image.fromarray(each) for each in PIXELS]
LABELS = torch.arange(60) % 3


class Pairs(torch.utils.data.Dataset):
    """A torch data set of pairs (image, label)."""

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, number):
        if number >= len(PIXELS):
            raise IndexError
        return PICTURES[number], int(LABELS[number])


def hub():
    datasets = pytest.importorskip("datasets")
    kinds = {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b", "c"])}
    columns = {"picture": PICTURES, "kind": LABELS.tolist()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize("on_disk", [False, True])
def test_python_objects_give_the_same_images(monkeypatch, on_disk):
    for given, labelled in ((PIXELS, False), (TENSOR, False), (PICTURES, False), (Pairs(), True)):
        monkeypatch.setattr(lazy, "MEMORY", 0 if on_disk else 2**30)
        images, labels, *_ = as_images(given)
        is_lazy = on_disk and given is not PIXELS and given is not TENSOR
        assert isinstance(images, LazyImages) == is_lazy
        assert torch.equal(images[torch.arange(60)], TENSOR)
        assert torch.equal(labels, LABELS) if labelled else labels is None
        rows = torch.arange(54)
        ours, plain = (ImageData.from_tensors(x, None, 256).train[rows] for x in (given, TENSOR))
        assert torch.equal(ours, plain)
    images, labels, _, names = as_images(hub())
    assert torch.equal(images[torch.arange(60)], TENSOR) and torch.equal(labels, LABELS)
    assert names == ("a", "b", "c")


def test_hub_folder_gives_its_splits(tmp_path):
    datasets, made = pytest.importorskip("datasets"), hub()
    made.save_to_disk(tmp_path / "one")
    splits = {"train": made.select(range(50)), "test": made.select(range(50, 60))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "two")
    one, two = (load_images(f"hf:{tmp_path / name}") for name in ("one", "two"))
    assert torch.equal(two.test, TENSOR[50:]) and torch.equal(two.labels[2], LABELS[50:])
    assert set(image_hashes(two.validation).tolist()) <= set(image_hashes(one.validation).tolist())
    assert one.num_classes == 3 and min(map(len, (one.validation, one.test, two.validation))) > 1
    whole = torch.cat([one.train, one.validation, one.test]).flatten(1)
    assert sorted(map(tuple, whole.tolist())) == sorted(map(tuple, TENSOR.flatten(1).tolist()))
    assert "Cannot read" in error_of(load_images, f"hf:{tmp_path / 'none'}")
    made.remove_columns("picture").save_to_disk(tmp_path / "bare")
    assert "no image column" in error_of(load_images, f"hf:{tmp_path / 'bare'}")


@pytest.mark.process
def test_training_from_disk_equals_training_from_memory(monkeypatch, tmp_path, image_folder):
    runs, data = {}, {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place, memory in (("memory", 2**30), ("disk", 0)):
        monkeypatch.setattr(lazy, "MEMORY", memory)
        data[place] = load_images(f"folder:{image_folder}").train
        runs[place] = tmp_path / place
        train(PICTURES, runs[place], max_train_steps=4, **SMALL)
    rows = torch.arange(len(data["disk"]))
    assert isinstance(data["disk"], LazyImages)
    assert image_digest(data["disk"]) == image_digest(data["memory"])
    assert image_digest(data["disk"]) != image_digest(data["disk"].select(rows.flip(0)))
    assert equal_tensors(*map(weights_of, runs.values()))


def test_ambiguous_and_mixed_shapes_are_user_errors():
    both, mixed = np.zeros((4, 3, 8, 3), np.uint8), [*PICTURES[:3], PICTURES[0].resize((4, 8))]
    assert "channels first or last" in error_of(as_images, both)
    assert "'image 3' is 4x8" in error_of(as_images, mixed)
