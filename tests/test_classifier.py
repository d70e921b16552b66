"""Class labels belong to their images, and the classifier learns them."""

import pickle
import struct

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import generator
from torchvision import datasets

from ebm_app.data.images import DATASETS, load_images
from ebm_app.data.labels import load_labels
from ebm_app.evaluation.classifier import Classifier, shifted, train_classifier

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def digits():
    """(training images, their labels, test images, theirs)."""
    data, (train, _, test) = load_images("digits"), load_labels("digits")
    return data.train / 16, train, data.test / 16, test


def test_the_labels_of_digits_are_those_of_their_images():
    from sklearn.datasets import load_digits

    original = load_digits()
    known = {
        image.astype(np.uint8).tobytes(): label
        for image, label in zip(original.images, original.target, strict=True)
    }
    assert len(known) == 1797, "no two of the digits are equal"
    data = load_images("digits")
    for name, labels in zip(SPLITS, load_labels("digits"), strict=True):
        assert labels.dtype == torch.int64
        assert labels.tolist() == [known[image.tobytes()] for image in data.split(name).numpy()]


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_the_labels_of_files_follow_the_splits(name, folder, tmp_path):
    """Image n holds the value n and has the label n mod 10."""
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    for part, num in (("train", 31), ("t10k", 7)):
        values = np.arange(num, dtype=np.uint8)
        pixels = np.repeat(values, 28 * 28).tobytes()
        head = struct.pack(">IIII", 0x803, num, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + pixels)
        head = struct.pack(">II", 0x801, num)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + (values % 10).tobytes())
    data = load_images(name, tmp_path)
    for split, labels in zip(SPLITS, load_labels(name, tmp_path), strict=True):
        assert torch.equal(labels, data.split(split)[:, 0, 0, 0].long() % 10)
    (raw / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 2) + b"\0\0")
    assert "38 images but 33 labels" in error_of(load_labels, name, tmp_path)


def test_the_labels_of_cifar_follow_the_splits(tmp_path, monkeypatch):
    """Image n holds the value n and has the label n mod 10; the MD5 are taken as published."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    *batches, meta = DATASETS["cifar10"].files
    for i, name in enumerate(batches):
        values = np.arange(3 * i, 3 * i + 3, dtype=np.uint8)
        content = {"data": np.tile(values[:, None], (1, 3072)), "labels": (values % 10).tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / meta).write_bytes(pickle.dumps({"label_names": ["a", "b"]}))
    md5 = {name: datasets.utils.calculate_md5(folder / name) for name in (*batches, meta)}
    pairs = [[name, md5[name]] for name in batches]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", pairs[:-1])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", pairs[-1:])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": md5[meta]})
    data, labels = load_images("cifar10", tmp_path), load_labels("cifar10", tmp_path)
    assert [len(split) for split in labels] == [13, 2, 3]
    for split, own in zip(SPLITS, labels, strict=True):
        assert torch.equal(own, data.split(split)[:, 0, 0, 0].long() % 10)


def test_a_folder_has_no_labels(tmp_path):
    message = error_of(load_labels, f"folder:{tmp_path}")
    assert "no class labels" in message and all(name in message for name in DATASETS)
    assert "choose one of" in error_of(load_labels, "imagenet")
    assert "--data_root" in error_of(load_labels, "mnist", tmp_path)


def test_the_classifier_learns_the_digits_in_a_moment(digits):
    images, labels, test_images, test_labels = digits
    classifier = train_classifier(images, labels, 10, seed=0, num_steps=150)
    features, logits = classifier.features_and_logits(test_images, batch_size=100)
    assert (logits.argmax(1) == test_labels).double().mean() > 0.95
    assert features.shape == (297, 64) and logits.shape == (297, 10)
    assert not classifier.training and not features.requires_grad
    assert torch.allclose(features, classifier.features(test_images), atol=1e-4)
    assert torch.allclose(logits, classifier(test_images), atol=1e-4)


def test_training_depends_on_its_seed_alone(digits):
    images, labels, *_ = digits
    before = torch.random.get_rng_state()
    one, same, other = (
        train_classifier(images, labels, 10, seed, num_steps=3).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert not torch.equal(one["body.0.weight"], other["body.0.weight"])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 2, 3)], ids=str)
def test_other_sizes_of_images(shape):
    images = torch.rand((6, *shape), generator=generator())
    steps = []
    classifier = train_classifier(
        *(images, torch.arange(6) % 3, 3, 0, 2, 4), wrap=lambda r: steps.extend(r) or r
    )
    features, logits = classifier.features_and_logits(images)
    assert features.shape == (6, 64) and logits.shape == (6, 3) and steps == [0, 1]
    assert features.isfinite().all() and isinstance(classifier, Classifier)


def test_shifts_move_each_image_by_up_to_an_eighth_of_its_side():
    images = torch.zeros(200, 2, 8, 16)
    images[:, 0, 4, 7], images[:, 1, 4, 8] = 1, 2
    moved = shifted(images, generator())
    places = moved[:, 0].flatten(1).argmax(1)
    rows, columns = places // 16, places % 16
    assert set(rows.tolist()) == {3, 4, 5} and set(columns.tolist()) == {5, 6, 7, 8, 9}
    assert torch.equal(moved[:, 1].flatten(1).argmax(1), places + 1), "channels move together"
    assert torch.equal(moved.sum((2, 3)), images.sum((2, 3)))
    edge = shifted(torch.ones(50, 1, 8, 8), generator())
    assert edge.shape == (50, 1, 8, 8) and edge.amin() == 0 and (edge.sum((1, 2, 3)) >= 49).all()


def test_what_cannot_be_learned_is_refused():
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    for wrong in (labels[:3], labels - 1, labels + 7):
        with pytest.raises(ValueError, match="a label each in 0..9"):
            train_classifier(images, wrong, 10, 0)
    with pytest.raises(ValueError, match="loss is nan at step 1"):
        train_classifier(images / 0 - images / 0, labels, 10, 0)
