"""``ebm_app.train``: runs from tensors, an accelerate configuration, hashes of training images."""

import csv
import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import (
    SMALL,
    TINY,
    call,
    equal_tensors,
    error_of,
    random_images,
    save_picture,
    weights_of,
)
from safetensors.torch import save_file

from ebm_app import EBM, train
from ebm_app.anomaly import AnomalyDetector
from ebm_app.cli import bpd, score
from ebm_app.data.images import load_images
from ebm_app.folders import HASHES_FILE
from ebm_app.utils import processes
from ebm_app.utils.files import read_json
from ebm_app.utils.processes import SHARDING, make_accelerator, resolve_precision

IMAGES = random_images(12, 8)


@pytest.mark.process
def test_tensors_and_script_train_the_same_weights(script, tmp_path):
    data, tensors, files = load_images("digits"), tmp_path / "tensors", tmp_path / "files"
    steps = {"max_train_steps": 4, "checkpointing_steps": 2, "validation_steps": 2}
    options = {"dataset": "digits", "num_levels": 17, "validation": data.validation}
    ebm = train(data.train.double() / 16, tensors, **options, **SMALL, **steps)
    flags = [word for item in steps.items() for word in (f"--{item[0]}", item[1])]
    module, own = script("train/ebm.py"), ["--dataset", "digits", "--output_dir", files, *TINY]
    assert call(module, *own, *flags) == 0
    assert equal_tensors(weights_of(tensors), weights_of(files))
    assert equal_tensors(weights_of(tensors), dict(ebm.state_dict()))
    settings = [read_json(run / "run.json")["settings"] for run in (tensors, files)]
    assert settings[1].pop("flags")["dataset"] == "digits"
    assert settings[0] == settings[1]
    own[3] = tensors
    assert call(module, *own, *flags, "--resume_from_checkpoint", "latest") == 0


def test_training_returns_a_model_and_keeps_the_generator(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    steps = {"num_levels": np.int64(17), "max_train_steps": np.int32(2)}
    ebm = train(IMAGES.numpy(), tmp_path / "run", **steps, **SMALL)
    assert torch.equal(torch.rand(3), expected)
    assert not ebm.training and ebm.config.num_levels == 17
    ebm.save_pretrained(tmp_path / "copy")
    again = EBM.from_pretrained(tmp_path / "copy")
    assert torch.equal(again.log_prob(IMAGES), ebm.log_prob(IMAGES))


def test_invalid_arguments_are_refused(tmp_path):
    for images, settings, message in (
        (IMAGES, {"validation": IMAGES[..., :4]}, "size"),
        (IMAGES[:2], {}, "at least 3"),
        (IMAGES, {"learning_rate": "fast"}, "learning_rate"),
    ):
        assert message in error_of(train, images, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train in an environment; return the record and the weights."""

    def run(name, settings=SMALL, **environment):
        AcceleratorState._reset_state(reset_partial_state=True)  # shared, and read once
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv("ACCELERATE_" + key, value)
            train(IMAGES, tmp_path / name, num_levels=17, max_train_steps=2, **settings)
        return read_json(tmp_path / name / "run.json"), weights_of(tmp_path / name)

    yield run
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.process
def test_precision_and_compiler_are_used_and_recorded(trained):
    """The backends compute as without a compiler, and accumulation is left to the loop."""
    plain, weights = trained("plain", GRADIENT_ACCUMULATION_STEPS="4")
    assert plain["figures"]["device"] == "1 x cpu"
    compiled, same = trained("compiled", {**SMALL, "compile": "aot_eager"}, DYNAMO_BACKEND="EAGER")
    assert compiled["figures"]["device"] == "1 x cpu, compiled by aot_eager"
    half, other = trained("half", {**SMALL, "mixed_precision": "auto"}, MIXED_PRECISION="bf16")
    assert half["settings"]["training"]["mixed_precision"] == "bf16"
    for name in weights:
        torch.testing.assert_close(same[name], weights[name], atol=1e-6, rtol=1e-5)
    assert any((other[name] != weights[name]).any() for name in weights)


def test_auto_precision_follows_the_processor(monkeypatch, capsys):
    for supported, precision in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: value)
        assert resolve_precision("auto", "cpu") == precision and not capsys.readouterr().err
        assert resolve_precision("bf16", "cpu") == "bf16"
        assert ("7 times" in capsys.readouterr().err) != supported
    assert resolve_precision("no", "cpu") == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert resolve_precision("auto", "cpu") == "fp16"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_on_cuda_uses_tf32(monkeypatch, device):
    precisions = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", precisions.append)
    monkeypatch.setattr(processes, "resolve_device", lambda name: device)
    monkeypatch.setattr(processes, "Accelerator", Mock())
    make_accelerator()
    assert not precisions
    make_accelerator("no")
    assert precisions == (["high"] if device == "cuda" else [])


@pytest.mark.process
def test_resume_keeps_the_recorded_precision(trained, monkeypatch):
    """Also on another processor, and in a process that used another precision before."""
    auto = {**SMALL, "mixed_precision": "auto"}
    for supported, precision in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: value)
        first, _ = trained(precision, auto)
        assert first["settings"]["training"]["mixed_precision"] == precision
        monkeypatch.setattr(processes, "has_bfloat16", lambda device, value=supported: not value)
        resumed, _ = trained(precision, {**auto, "resume_from_checkpoint": "latest"})
        assert resumed["settings"] == first["settings"]


@pytest.mark.parametrize("name", SHARDING)
def test_sharded_networks_are_refused(monkeypatch, name):
    monkeypatch.setenv(name, "true")
    assert "--multi_gpu" in error_of(make_accelerator, device="cpu")


STEPS = {**SMALL, "max_train_steps": 2, "checkpointing_steps": 1, "validation_steps": 1}


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


@pytest.mark.process
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


@pytest.mark.process
def test_further_training_adds_images(run, data, tmp_path):
    options = {"validation": data.validation, "labels": data.labels[2], "dataset": data.name}
    options |= {"init_from": str(run), **STEPS}
    train(data.test, tmp_path, **options)
    train(data.test, tmp_path, **options, resume_from_checkpoint="latest")
    ebm = EBM.from_pretrained(tmp_path)
    assert ebm.was_trained_on(torch.cat([data.train, data.test])).all()


@pytest.mark.process
def test_evaluations_name_training_images(run, data, tmp_path, capsys):
    for split, num in (("train", 3), ("test", 0)):
        flags = ["--device", "cpu", "--split", split, "--limit", 3, "--output_dir", tmp_path]
        assert call(bpd, run, *flags) == 0
        out, error = capsys.readouterr()
        names = data.split_names(split)[:3]
        assert json.loads(out.splitlines()[-1])["trained_on"] == num
        assert ("trained on 3 of these 3 images" in error and names[0] in error) == (num > 0)
        (record,) = tmp_path.glob("*.json")
        assert read_json(record)["trained_on"] == names[:num]


@pytest.mark.process
def test_score_marks_training_images(run, photos, data, tmp_path, capsys):
    flags = [run, photos / "a", "--output", tmp_path / "scores.csv", "--repeats", 2]
    assert call(score, *flags, "--estimator", "time_integral", "--device", "cpu") == 0
    rows = csv.DictReader((tmp_path / "scores.csv").open())
    found = {f"a/{row['file']}" for row in rows if row["trained_on"] == "yes"}
    assert found == {name for name in data.split_names("train") if name.startswith("a/")}
    assert f"trained on {len(found)} of these 50 images" in capsys.readouterr().err


@pytest.mark.process
def test_detector_leaves_training_images_out(run, data):
    others = torch.randint(256, (80, 1, 8, 8), dtype=torch.uint8)
    detector = AnomalyDetector(EBM.from_pretrained(run))
    detector.fit(torch.cat([others, others[:4], data.train[:3]]))
    assert detector.left_out_ == list(range(80, 87))
    seen = detector.examine(torch.cat([data.train[:2], data.test[:2]])).trained_on
    assert seen.tolist() == [True, True, False, False]
    assert "not trained on" in error_of(detector.fit, data.train)
