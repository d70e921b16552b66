"""Named image data sets, and the sentence behind each mistake with them."""

import pickle
import struct
from urllib.error import URLError

import numpy as np
import pytest
import torch
from conftest import error_of
from torchvision import datasets

from ebm_app.data import DATASETS, ImageData, load_images

SPLITS = ("train", "validation", "test")


def write_idx(path, array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        ">" + "I" * array.ndim, *array.shape
    )
    path.write_bytes(header + array.tobytes())


@pytest.fixture(params=[("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")], ids=lambda p: p[0])
def mnist(request, tmp_path):
    """(name, data root, raw folder) of 30 + 5 images of 28 x 28, image n holding the value n."""
    name, class_name = request.param
    raw = tmp_path / class_name / "raw"
    raw.mkdir(parents=True)
    for part, number in (("train", 30), ("t10k", 5)):
        values = np.arange(number, dtype=np.uint8)
        write_idx(raw / f"{part}-labels-idx1-ubyte", values % 10)
        write_idx(raw / f"{part}-images-idx3-ubyte", np.tile(values[:, None, None], (1, 28, 28)))
    return name, tmp_path, raw


def first_pixels(split):
    return split[:, 0, 0, 0].tolist()


# ---------------------------------------------------------------------------------- ImageData


def test_image_data_checks_its_splits_and_names():
    levels = torch.zeros(4, 3, 2, 5, dtype=torch.uint8)
    data = ImageData("x", 2, levels, levels[:2], levels[:1])
    assert data.image_shape == (3, 2, 5)
    assert [len(data.split(s)) for s in SPLITS] == [4, 2, 1]
    message = error_of(data.split, "valid")
    assert all(name in message for name in ("'valid'", *SPLITS))
    for wrong in (levels.float(), levels[0], levels[:0], levels + 2, levels[..., :4]):
        with pytest.raises(ValueError):
            ImageData("x", 2, levels, wrong, levels)
    with pytest.raises(ValueError, match="between 2 and 256"):
        ImageData("x", 257, levels, levels, levels)


# -------------------------------------------------------------------------------- named data


def test_digits_are_split_exhaustively_and_always_alike():
    data = load_images("digits")
    assert data.num_levels == 17 and data.image_shape == (1, 8, 8)
    assert [len(data.split(s)) for s in SPLITS] == [1400, 100, 297]
    everything = torch.cat([data.split(s) for s in SPLITS])
    assert everything.dtype == torch.uint8 and everything.min() == 0 and everything.max() == 16
    from sklearn.datasets import load_digits

    original = load_digits().images.astype(np.uint8).reshape(1797, -1)
    # no two of the digits are equal, so that equal sets of rows mean disjoint, exhaustive splits
    assert len({row.tobytes() for row in original}) == 1797
    assert sorted(r.tobytes() for r in everything.flatten(1).numpy()) == sorted(
        row.tobytes() for row in original
    )
    assert torch.equal(data.train, load_images("digits").train)
    # RandomState(0) draws this permutation in every version of numpy
    assert torch.equal(data.train[0, 0].flatten(), torch.from_numpy(original[1081]))


def test_mnist_holds_the_last_sixth_out(mnist):
    name, root, _ = mnist
    data = load_images(name, root)
    assert data.num_levels == 256 and data.image_shape == (1, 28, 28) and data.name == name
    assert first_pixels(data.train) == list(range(25))
    assert first_pixels(data.validation) == list(range(25, 30))
    assert first_pixels(data.test) == list(range(5))


def test_mnist_of_full_size_splits_as_in_the_paper(mnist):
    name, root, raw = mnist
    write_idx(raw / "train-images-idx3-ubyte", np.zeros((60_000, 2, 2), np.uint8))
    write_idx(raw / "t10k-images-idx3-ubyte", np.zeros((10_000, 2, 2), np.uint8))
    data = load_images(name, root)
    assert [len(data.split(s)) for s in SPLITS] == [50_000, 10_000, 10_000]


def test_mnist_names_missing_files(mnist, monkeypatch):
    name, root, raw = mnist
    (raw / "t10k-labels-idx1-ubyte").unlink()
    (raw / "train-images-idx3-ubyte").unlink()
    message = error_of(load_images, name, root)
    for part in (str(raw), str(root), "--data_root", "--download", "t10k-labels", "train-images"):
        assert part in message
    assert "train-labels" not in message and "uncompressed" in message
    monkeypatch.chdir(root / "..")
    assert "'data'" in error_of(load_images, name), "the folder 'data' is the default"


@pytest.mark.parametrize("kept", [0, 3, 10, 16, 1000])
def test_truncated_mnist_is_damaged(mnist, kept):
    name, root, raw = mnist
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:kept])
    for download in (False, True):
        message = error_of(load_images, name, root, download=download)
        assert name in message and str(raw) in message and "truncated" in message


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b\x08\x00compressed",
        np.zeros((5, 28, 28), np.uint8),
        np.zeros((9, 8, 8), np.uint8),
    ],
    ids=["gzip", "too few", "another size"],
)
def test_wrong_mnist_is_damaged(mnist, content):
    name, root, raw = mnist
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(content) if isinstance(content, bytes) else write_idx(file, content)
    assert name in error_of(load_images, name, root)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_download_only_on_request_and_its_failure(name, tmp_path, monkeypatch):
    asked = []

    def fail(url, *args, **kwargs):
        asked.append(url)
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    error_of(load_images, name, tmp_path)
    assert not asked and not list(tmp_path.iterdir())
    message = error_of(load_images, name, tmp_path, download=True)
    assert asked
    assert name in message and "download" in message and str(tmp_path) in message
    assert "no network" in message and DATASETS[name].files[0] in message


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """(data root, batches): fake CIFAR-10 batches of two images, their MD5 taken as published."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batches = {}
    for i, name in enumerate(DATASETS["cifar10"].files[:-1]):
        pixels = np.random.RandomState(i).randint(0, 256, (2, 3072), dtype=np.uint8)
        batches[name] = torch.from_numpy(pixels).view(2, 3, 32, 32)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [0, 1]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b"]}))

    def md5(name):
        return datasets.utils.calculate_md5(folder / name)

    train = [[name, md5(name)] for name in batches if name != "test_batch"]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", md5("test_batch")]])
    meta = {**datasets.CIFAR10.meta, "md5": md5("batches.meta")}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    return tmp_path, batches


def test_cifar_is_channels_first(cifar):
    root, batches = cifar
    data = load_images("cifar10", root)
    assert data.image_shape == (3, 32, 32) and data.num_levels == 256
    train = torch.cat([batches[f"data_batch_{i}"] for i in range(1, 6)])
    assert torch.equal(torch.cat([data.train, data.validation]), train)
    assert torch.equal(data.test, batches["test_batch"]) and len(data.validation) == 1


def test_cifar_of_another_origin_is_never_unpickled(cifar, monkeypatch):
    root, _ = cifar
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"changed")
    monkeypatch.setattr(pickle, "load", lambda *a, **k: pytest.fail("unpickled"))
    assert "cifar10" in error_of(load_images, "cifar10", root)
    (root / "cifar-10-batches-py" / "data_batch_3").unlink()
    message = error_of(load_images, "cifar10", root)
    assert "cifar-10-batches-py" in message and "data_batch_3" in message
    assert "data_batch_2" not in message


def test_unknown_name_and_resolution_of_named_data():
    message = error_of(load_images, "imagenet")
    assert all(name in message for name in ("'imagenet'", "folder:PATH", *DATASETS))
    assert set(DATASETS) == {"digits", "mnist", "fashion_mnist", "cifar10"}
    assert all(source.note for source in DATASETS.values())
    for name in DATASETS:
        message = error_of(load_images, name, resolution=16)
        assert "resolution" in message and "folder:PATH" in message
    assert "folder:PATH" in error_of(load_images, "folder:")
