"""Named data sets, and data sets of tensors: splits, labels, mistakes."""

import pickle
from unittest.mock import Mock
from urllib.error import URLError

import numpy as np
import pytest
import torch
from conftest import error_of, write_idx, write_mnist
from sklearn.datasets import load_digits
from torchvision import datasets

from ebm_app.data.datasets import ImageData, load_images

SPLITS = ("train", "validation", "test")
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")


@pytest.fixture
def mnist(tmp_path):
    """Return (data root, raw folder) of 30 + 5 images."""
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw, (30, 5))
    return tmp_path, raw


def test_digits_have_fixed_splits():
    data = load_images("digits")
    assert data.num_levels == 17 and data.image_shape == (1, 8, 8)
    assert [len(data.split(s)) for s in SPLITS] == [1400, 100, 297]
    found = torch.cat([data.split(s) for s in SPLITS]).flatten(1).numpy()
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(1797)
    assert np.array_equal(found, images[order])
    assert np.array_equal(torch.cat(data.labels), labels[order])
    assert "validation" in error_of(data.split, "valid")


def test_mnist_holds_out_the_last_sixth(mnist):
    data = load_images("mnist", mnist[0])
    assert data.num_levels == 256 and data.image_shape == (1, 28, 28) and data.name == "mnist"
    expected = list(range(25)), list(range(25, 30)), list(range(5))
    for split, kinds, values in zip(SPLITS, data.labels, expected, strict=True):
        assert data.split(split)[:, 0, 0, 0].tolist() == values
        assert kinds.tolist() == [value % 10 for value in values]


def test_missing_and_damaged_files_are_refused(mnist, monkeypatch):
    """Nothing is downloaded unless requested."""
    download = Mock(side_effect=URLError("no network"))
    monkeypatch.setattr("urllib.request.urlopen", download)
    root, raw = mnist
    write_idx(raw / "train-images-idx3-ubyte", np.zeros((9, 8, 8), np.uint8))
    for name in ("mnist", "cifar10"):
        assert name in error_of(load_images, name, root)
    assert not download.called
    assert "no network" in error_of(load_images, "cifar10", root, download=True)


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Return (data root, batches) of fake CIFAR-10 files, whose MD5 torchvision accepts."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batches, sums = {}, {}
    for i, name in enumerate(CIFAR_FILES):
        pixels = np.random.RandomState(i).randint(0, 256, (10, 3072), dtype=np.uint8)
        batches[name] = torch.from_numpy(pixels).view(10, 3, 32, 32)
        content = {"data": pixels, "labels": [i] * 10, "label_names": ["a", "b"]}
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = datasets.utils.calculate_md5(folder / name)
    *train, test, meta = sums.items()
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [test])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": meta[1]})
    return tmp_path, batches


def test_cifar_is_not_unpickled_with_another_digest(cifar, monkeypatch):
    root, batches = cifar
    data = load_images("cifar10", root)
    assert data.image_shape == (3, 32, 32) and data.num_levels == 256
    train = torch.cat([batches[f"data_batch_{i}"] for i in range(1, 6)])
    assert torch.equal(torch.cat([data.train, data.validation]), train)
    assert torch.equal(data.test, batches["test_batch"]) and len(data.validation) == 8
    assert data.labels[0].tolist() == [i for i in range(5) for _ in range(10)][:42]
    assert data.labels[2].tolist() == [5] * 10
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"changed")
    monkeypatch.setattr(pickle, "load", lambda *a, **k: pytest.fail("unpickled"))
    assert "cifar10" in error_of(load_images, "cifar10", root)


TENSOR = torch.from_numpy(np.random.RandomState(0).randint(0, 256, (12, 3, 8, 6), dtype=np.uint8))


@pytest.mark.parametrize(("num", "held_out"), [(40, 4), (9, 2)])
def test_tenth_of_a_tensor_is_held_out(num, held_out):
    images, labels = torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(num)
    data = ImageData.from_tensors(images, None, num, labels=labels)
    found, rest = (x.flatten().tolist() for x in (data.validation, data.train))
    assert sorted(found + rest) == list(range(num)) and len(found) == held_out
    assert [*map(torch.Tensor.tolist, data.labels)] == [rest, found, found]
    assert "at least 3 images, got 2" in error_of(ImageData.from_tensors, images[:2], None, 256)


def test_validation_images_of_a_tensor_are_the_test_images():
    data = ImageData.from_tensors(TENSOR[:8], TENSOR[8:] / 255, 256, labels=torch.arange(8))
    assert torch.equal(data.train, TENSOR[:8]) and torch.equal(data.validation, TENSOR[8:])
    assert torch.equal(data.test, data.validation)
    assert data.labels[1].tolist() == data.labels[2].tolist() == [-1] * 4
    message = error_of(ImageData.from_tensors, TENSOR.permute(0, 2, 3, 1), None, 256)
    assert "permute" in message


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(12, 2).long(), torch.zeros(12), torch.arange(-1, 11), torch.arange(12) + 10**5],
)
def test_labels_are_one_integer_per_image(labels):
    assert "labels" in error_of(ImageData.from_tensors, TENSOR, None, 256, labels=labels)


def test_unused_levels_raise_a_warning():
    with pytest.warns(UserWarning, match="num_levels=17"):
        ImageData.from_tensors(TENSOR % 17, None, 256)
