"""``ebm_app.train``: runs from tensors; resumes from the last or an earlier checkpoint."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    GREY,
    SMALL,
    call,
    config_flags,
    equal_tensors,
    error_of,
    random_images,
    weights_of,
    without_speeds,
)
from safetensors.torch import save

from ebm_app import EBM, train
from ebm_app.data.datasets import load_images
from ebm_app.training.checkpoint import checkpoints
from ebm_app.training.metrics import read_metrics
from ebm_app.utils.files import read_json

SETTINGS = {**SMALL, "num_levels": 17, "num_preview_images": 1, "max_train_steps": 12}
SETTINGS |= {"checkpointing_steps": 4, "validation_steps": 3}
IMAGES = random_images(20, 4)
LATEST = {**SETTINGS, "resume_from_checkpoint": "latest"}


def test_tensors_and_script_train_the_same_weights(script, tmp_path, capsys):
    """A resume by the script needs the folder only."""
    data, tensors, files = load_images("digits"), tmp_path / "tensors", tmp_path / "files"
    steps = {"max_train_steps": 4, "checkpointing_steps": 2, "validation_steps": 2}
    options = {"dataset": "digits", "num_levels": 17, "validation": data.validation}
    ebm = train(data.train.double() / 16, tensors, **options, **SMALL, **steps)
    flags = ["--dataset", "digits", *config_flags("steps", SMALL | steps)]
    module = script("train/ebm.py")
    assert call(module, *flags, "--output_dir", files) == 0
    assert equal_tensors(weights_of(tensors), weights_of(files))
    assert equal_tensors(weights_of(tensors), dict(ebm.state_dict()))
    settings = [read_json(run / "run.json")["settings"] for run in (tensors, files)]
    for each in settings:
        del each["train"]["output_dir"], each["train"]["config"]
    assert settings[0] == settings[1]
    expected = weights_of(files)
    shutil.rmtree(files / "checkpoint-4")
    resume = [module, "--output_dir", files, "--resume_from_checkpoint", "latest"]
    assert call(*resume, "--learning_rate", 0.5) == 2
    assert "learning_rate" in capsys.readouterr().err
    assert call(*resume) == 0 and equal_tensors(weights_of(files), expected)


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


#: Word of the error, and settings
INVALID = {
    "(20, 1, 4, 2)": {"validation": IMAGES[..., :2]},
    "learning_rate": {"learning_rate": "fast"},
    "'lr'": {"lr": 3},
    "wandb": {"report_to": "wandb"},
    "dry_run": {"dry_run": True},
    "resolution": {"resolution": 4},
    "labels": {"labels": torch.zeros(20, dtype=torch.long), "classes": "none"},
}


@pytest.mark.parametrize("word", INVALID)
def test_invalid_arguments_are_refused(word, tmp_path):
    settings = {"num_levels": 17, **SMALL, **INVALID[word]}
    assert word in error_of(train, IMAGES, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(IMAGES, folder, **SETTINGS)
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def rows_of(folder: Path) -> list[dict]:
    return without_speeds(read_metrics(folder / "metrics.jsonl"))


def test_earlier_checkpoint_resumes_in_another_folder(whole, run, tmp_path):
    again, by_path = tmp_path / "again", {"resume_from_checkpoint": str(run / "checkpoint-4")}
    assert "checkpoints later" in error_of(train, IMAGES, run, **SETTINGS, **by_path)
    train(IMAGES, again, **SETTINGS, **by_path)
    assert {row["step"] for row in rows_of(again)} == set(range(5, 13))
    assert "already holds a run" in error_of(train, IMAGES, again, **SETTINGS, **by_path)
    assert rows_of(again) == rows_of(whole)[-len(rows_of(again)) :]
    assert equal_tensors(weights_of(again), weights_of(whole))


def test_damaged_checkpoint_is_refused(whole, run):
    last = run / "checkpoint-12"
    for name in ("model.safetensors", "state/state.safetensors", "state/best.safetensors"):
        content = (last / name).read_bytes()
        (last / name).write_bytes(content[:-1])
        assert Path(name).name in error_of(train, IMAGES, run, **LATEST)
        (last / name).write_bytes(content)
    (last / "state" / "state.json").unlink()
    assert "state.json" in error_of(train, IMAGES, run, **LATEST)
    assert len(checkpoints(run)) == 3
    shutil.rmtree(last)
    train(IMAGES, run, **LATEST)
    assert rows_of(run) == rows_of(whole)
    assert equal_tensors(weights_of(run), weights_of(whole))


def test_resume_ignores_incomplete_files(whole, run):
    shutil.rmtree(run / "checkpoint-12")
    (run / "run.json").write_text('{"command": [')
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"ste')
    (run / "checkpoint-9.tmp").mkdir()
    (run / "notes.tmp").write_text("mine")
    train(IMAGES, run, **LATEST)
    assert rows_of(run) == rows_of(whole)
    assert [path.name for path in run.glob("*.tmp")] == ["notes.tmp"]
    names = [folder.name for folder in checkpoints(run)]
    assert names == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]


@pytest.mark.parametrize("name", ["state.safetensors", "best.safetensors"])
def test_mismatched_tensors_are_refused(run, name):
    last, top = run / "checkpoint-12", (run / "model.safetensors").read_bytes()
    (last / "state" / name).write_bytes(save({"x": torch.zeros(1)}))
    error_of(train, IMAGES, run, **LATEST)
    assert (run / "model.safetensors").read_bytes() == top


def test_energy_network_resumes_exactly(script, tmp_path):
    whole, part, teacher, other = (
        tmp_path / name for name in ("whole", "part", "teacher", "other")
    )
    EBM(replace(GREY, dequantisation="truncated_normal")).save_pretrained(teacher)
    settings = {"num_preview_images": 0, "validation_images": 4, "checkpointing_steps": 2}
    settings |= {"validation_steps": 4, "logging_steps": 1, "device": "cpu"}
    words = [teacher, *config_flags("energy", settings)]
    words += "--max_train_steps 4 --train_batch_size 4".split()
    energy = script("train/energy.py")
    assert call(energy, *words, "--output_dir", whole) == 0
    shutil.copytree(whole, part)
    shutil.rmtree(part / "checkpoint-4")  # as if cut off after step 2
    assert call(energy, "--output_dir", part, "--resume_from_checkpoint", "latest") == 0
    first, second = (weights_of(run / "checkpoint-4") for run in (whole, part))
    assert equal_tensors(first, second) and len(first) > 10
    calibration = read_json(part / "config.json")["calibration"]
    figures = read_json(whole / "run.json")["figures"]
    assert calibration == figures["calibration_nats"] and calibration["spread"] > 0
    torch.manual_seed(1)
    EBM(replace(GREY, dequantisation="truncated_normal")).save_pretrained(other)
    words[0] = other
    still = ["--init_from", whole, "--learning_rate", "0", "--output_dir", tmp_path / "still"]
    assert call(energy, *words, *still) == 0
    start, end, decoder = (weights_of(each) for each in (whole, tmp_path / "still", other))
    assert {name for name in start if not torch.equal(start[name], end[name])}
    for name, weight in end.items():
        kept = start[name]
        if "decoder" in name:
            kept = decoder[name.replace("decoder.", "")]
        assert torch.equal(weight, kept), name


def test_changed_settings_and_images_are_refused(run):
    assert "num_nodes" in error_of(train, IMAGES, run, **{**LATEST, "num_nodes": 16})
    for images, settings in ((random_images(20, 8), {}), (IMAGES, {"num_levels": 18})):
        assert "images" in error_of(train, images, run, **{**LATEST, **settings})
    path = run / "checkpoint-12" / "state" / "state.json"
    state = read_json(path)
    state["settings"]["ebm"]["class_names"] = ["a", "b"]
    path.write_text(json.dumps(state))
    assert "classes" in error_of(train, IMAGES, run, **LATEST)
    path.write_text(json.dumps(state | {"format_version": 0}))
    assert "version" in error_of(train, IMAGES, run, **LATEST)
