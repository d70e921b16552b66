"""The presets of the larger data sets on real pictures: patches of two photographs."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import call, error_of
from PIL import Image
from sklearn.datasets import load_sample_image
from test_images import write_idx
from torchvision import datasets

import ebm_app
from ebm_app.data import DATASETS, load_images

#: what a preset leaves to the machine: its network is as it ships
FEW = (
    "--max_train_steps 2 --train_batch_size 4 --validation_images 2 --validation_repeats 1 "
    "--num_preview_images 0 --device cpu"
).split()


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """A folder of images of 32x32, the three splits cut from strips of a photograph apart."""
    folder, photograph = tmp_path_factory.mktemp("patches"), load_sample_image("china.jpg")
    for name, start, end, stride in (
        ("train", 0, 448, 8),
        ("validation", 448, 512, 32),
        ("test", 512, 640, 32),
    ):
        (folder / name).mkdir()
        corners = [(i, j) for i in range(0, 396, stride) for j in range(start, end - 31, stride)]
        for index, (i, j) in enumerate(corners):
            image = Image.fromarray(photograph[i : i + 32, j : j + 32])
            image.save(folder / name / f"{index:05d}.png")
    return folder


def pixels_of(folder, num=None):
    """(N, 32, 32, 3) of the first images of a split."""
    return np.stack([np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))[:num]])


def write_cifar(folder, train, test, monkeypatch):
    """Files of CIFAR-10's layout, their MD5 taken as published."""
    folder.mkdir(parents=True)
    *batches, meta = DATASETS["cifar10"].files
    for name, images in zip(batches, [*np.array_split(train, 5), test], strict=True):
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        content = {"data": rows, "labels": [0] * len(rows)}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / meta).write_bytes(pickle.dumps({"label_names": ["a"]}))
    md5 = {name: datasets.utils.calculate_md5(folder / name) for name in DATASETS["cifar10"].files}
    pairs = [[name, md5[name]] for name in batches]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", pairs[:-1])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", pairs[-1:])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": md5[meta]})


def write_fashion(folder, train, test):
    """Files of Fashion-MNIST's layout, grey and of 28 x 28."""
    folder.mkdir(parents=True)
    for part, images in (("train", train), ("t10k", test)):
        grey = images[:, :28, :28].mean(-1).astype(np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte", grey)
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.zeros(len(grey), np.uint8))


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_a_preset_trains_scores_and_draws_as_it_stands(
    name, patches, script, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    train, test = pixels_of(patches / "train", 60), pixels_of(patches / "test", 12)
    write_cifar(tmp_path / "data/cifar-10-batches-py", train, test, monkeypatch)
    write_fashion(tmp_path / "data/FashionMNIST/raw", train, test)
    data = load_images(name)
    assert len(data.train) == 50 and len(data.test) == 12
    assert call(script("train/ebm.py"), "--dataset", name, "--output_dir", "run", *FEW) == 0
    settings = json.loads((tmp_path / "run/run.json").read_text())["settings"]
    assert settings["ebm"]["input_frequencies"] == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    assert settings["ebm"]["eps"] == 5e-9 and settings["ebm"]["num_levels"] == 256
    assert settings["ebm"]["net"]["layers_per_block"] == 2
    capsys.readouterr()
    score = ["--limit", "2", "--repeats", "1", "--estimator_args", "num_nodes=3", "num_draws=3"]
    assert call(script("evaluate/bpd.py"), "run", *score) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["estimators"]["elbo"]
    assert 0 < found["bits_per_dim"] < 20
    assert call(script("sample/ebm.py"), "run", "--num_images", "2", "--num_steps", "2") == 0
    drawn = {np.asarray(Image.open(path)).shape for path in Path("runs/samples").rglob("0*.png")}
    assert drawn == {(32, 32, 3) if name == "cifar10" else (28, 28)}


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_an_image_of_a_thousand_levels_is_refused(dtype, tmp_path):
    images = torch.randint(1000, (20, 1, 8, 8)).to(dtype)
    images = images / 999 if dtype == torch.float32 else images
    message = error_of(ebm_app.train, images, tmp_path / "run", num_levels=1000)
    assert "between 2 and 256, not 1000" in message
