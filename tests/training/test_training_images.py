"""The hashes of the training images beside a model, and evaluations that compare them."""

import csv
import json

import numpy as np
import pytest
import torch
from conftest import call, error_of, save_picture
from runs import SMALL
from safetensors.torch import save_file

from ebm_app import EBM, train
from ebm_app.anomaly import AnomalyDetector
from ebm_app.cli import bpd, classify, score
from ebm_app.data.images import load_images
from ebm_app.folders import HASHES_FILE
from ebm_app.utils.files import read_json

STEPS = {**SMALL, "max_train_steps": 2, "checkpointing_steps": 1, "validation_steps": 1}
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folder of 100 grey images of 8 x 8 pixels, in two classes."""
    folder = tmp_path_factory.mktemp("photos")
    for name in "ab":
        (folder / name).mkdir()
    for index, pixels in enumerate(np.random.RandomState(0).randint(0, 256, (100, 8, 8))):
        save_picture(folder / "ab"[index % 2] / f"{index}.png", pixels)
    return folder


@pytest.fixture(scope="module")
def data(photos):
    return load_images(f"folder:{photos}")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A class-conditional run on these images."""
    folder = tmp_path_factory.mktemp("run") / "run"
    options = {"dataset": data.name, "labels": data.labels[0], "validation": data.validation}
    train(data.train, folder, **options, **STEPS)
    return folder


def test_model_knows_its_training_images(run, data, tmp_path):
    EBM.from_pretrained(run).save_pretrained(tmp_path / "copy")
    for folder in (run, run / "checkpoint-1", tmp_path / "copy"):
        ebm = EBM.from_pretrained(folder)
        assert ebm.was_trained_on(data.train).all() and len(ebm.training_hashes) == len(data.train)
        assert not ebm.was_trained_on(torch.cat([data.validation, data.test])).any()
    save_file({"other": torch.zeros(3)}, tmp_path / "copy" / HASHES_FILE)
    assert HASHES_FILE in error_of(EBM.from_pretrained, tmp_path / "copy")
    (tmp_path / "copy" / HASHES_FILE).unlink()
    assert EBM.from_pretrained(tmp_path / "copy").was_trained_on(data.test) is None


def test_further_training_adds_images(run, data, tmp_path):
    options = {"validation": data.validation, "labels": data.labels[2], "dataset": data.name}
    options |= {"init_from": str(run), **STEPS}
    train(data.test, tmp_path, **options)
    train(data.test, tmp_path, **options, resume_from_checkpoint="latest")
    ebm = EBM.from_pretrained(tmp_path)
    assert ebm.was_trained_on(torch.cat([data.train, data.test])).all()


@pytest.mark.parametrize("command", [bpd, classify])
def test_evaluations_name_training_images(run, data, tmp_path, capsys, command):
    for split, num in (("train", 3), ("test", 0)):
        flags = ["--device", "cpu", "--split", split, "--limit", 3, "--output_dir", tmp_path]
        assert call(command, run, *flags) == 0
        out, error = capsys.readouterr()
        names = data.split_names(split)[:3]
        assert json.loads(out.splitlines()[-1])["trained_on"] == num
        assert ("trained on 3 of these 3 images" in error and names[0] in error) == (num > 0)
        (record,) = tmp_path.glob("*.json")
        assert read_json(record)["trained_on"] == names[:num]


def test_score_marks_training_images(run, photos, data, tmp_path, capsys):
    flags = [run, photos / "a", "--output", tmp_path / "scores.csv", "--repeats", 2]
    assert call(score, *flags, "--estimator", "time_integral", "--device", "cpu") == 0
    rows = csv.DictReader((tmp_path / "scores.csv").open())
    found = {f"a/{row['file']}" for row in rows if row["trained_on"] == "yes"}
    assert found == {name for name in data.split_names("train") if name.startswith("a/")}
    assert f"trained on {len(found)} of these 50 images" in capsys.readouterr().err


def test_detector_leaves_training_images_out(run, data):
    others = torch.randint(256, (80, 1, 8, 8), dtype=torch.uint8)
    detector = AnomalyDetector(EBM.from_pretrained(run))
    detector.fit(torch.cat([others, others[:4], data.train[:3]]))
    assert detector.left_out_ == list(range(80, 87))
    seen = detector.examine(torch.cat([data.train[:2], data.test[:2]])).trained_on
    assert seen.tolist() == [True, True, False, False]
    assert "not trained on" in error_of(detector.fit, data.train)
