"""Training by the command: what a run leaves, its settings, and replacing a run."""

import json
import shutil

import pytest
import torch
from conftest import TINY, call

from ebm_app.cli import train
from ebm_app.ebm import EBM
from ebm_app.utils.files import read_json


@pytest.fixture(scope="module")
def trained(tmp_path_factory, image_folder):
    """A run of four steps; ``test_processes`` starts the script in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "model"
    flags = "--max_train_steps 4 --validation_steps 2 --checkpointing_steps 2".split()
    flags += ["--dataset", f"folder:{image_folder}", "--output_dir", folder, *TINY]
    flags += "--num_preview_images 4 --report_to tensorboard".split()
    figures = train.main([str(flag) for flag in flags])
    assert figures["output_dir"] == str(folder) and figures["steps"] == 4
    assert figures["images_per_second"] > 0 and {"loss", "bits_per_dim"} <= set(figures)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def same_weights(*folders):
    one, other = (EBM.from_pretrained(folder).state_dict() for folder in folders)
    return all(torch.equal(one[name], other[name]) for name in one)


def test_run_leaves_model_records_and_previews(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "model.safetensors", "metrics.jsonl", "run.json", "loss.png"} <= names
    assert {"checkpoint-2", "checkpoint-4"} <= names
    assert len(list((trained / "previews").glob("*.png"))) == 2
    assert list(trained.rglob("events.out.tfevents*"))
    record = read_json(trained / "run.json")
    assert record["figures"]["steps"] == 4 and record["settings"]["training"]["seed"] == 0
    assert record["versions"]["torch"]
    assert EBM.from_pretrained(trained / "checkpoint-2").config.image_shape == (1, 8, 8)


@pytest.mark.process
def test_init_from_starts_with_the_weights(trained, image_folder, tmp_path, capsys):
    flags = ["--dataset", f"folder:{image_folder}", *TINY, "--max_train_steps", 1]
    flags += ["--lr_scheduler", "constant_with_warmup", "--init_from", trained]
    still = [*flags, "--learning_rate", 0, "--output_dir", tmp_path / "still"]
    assert call(train, *still) == 0 and same_weights(trained, tmp_path / "still")
    resumed = ["--max_train_steps", 2, "--resume_from_checkpoint", "latest"]
    assert call(train, *still, *resumed) == 0
    settings = read_json(tmp_path / "still" / "run.json")["settings"]
    assert settings["init_from"] == {"model": str(trained)}
    other = ["--prediction", "raw", "--output_dir", tmp_path / "other"]
    assert call(train, *flags, *other) == 2 and "prediction" in capsys.readouterr().err
    assert not (tmp_path / "other" / "run.json").exists()


def test_config_takes_the_settings_of_a_dry_run(capsys, tmp_path, image_folder):
    data = ["--dataset", f"folder:{image_folder}", "--output_dir", tmp_path / "run", "--dry_run"]
    assert call(train, *data, *TINY, "--learning_rate", "0.01") == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings["training"]["learning_rate"] == 0.01
    assert settings["ebm"]["net"]["block_out_channels"] == [8]
    assert not (tmp_path / "run").exists()
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    again = [*data[2:], "--config", tmp_path / "run.json"]  # the data set is that of the run
    assert call(train, *again, "--learning_rate", "0.02") == 0
    settings["training"]["learning_rate"] = 0.02
    assert json.loads(capsys.readouterr().out) == settings


def test_run_is_replaced_only_on_request(capsys, run):
    (run / "notes.txt").write_text("mine")
    flags = ["--output_dir", run, "--max_train_steps", 1, *TINY]
    assert call(train, *flags) == 2 and "already" in capsys.readouterr().err
    assert call(train, *flags, "--overwrite_output_dir") == 0
    names = {path.name for path in run.iterdir()}
    assert "checkpoint-4" not in names and {"checkpoint-1", "notes.txt"} <= names


@pytest.mark.process
def test_resume_by_folder_restores_data_and_settings(trained, run, capsys):
    shutil.rmtree(run / "checkpoint-4")
    flags = ["--resume_from_checkpoint", "latest", "--output_dir", run]
    contradictions = {
        "dataset": "digits",
        "resolution": 4,
        "size": "base",
        "learning_rate": 0.5,
        "expect_processes": 3,
    }
    for name, value in contradictions.items():
        assert call(train, *flags, f"--{name}", value) == 2
        assert name.removeprefix("expect_") in capsys.readouterr().err
    assert call(train, *flags) == 0
    assert "Training on 1 x cpu" in capsys.readouterr().err
    assert EBM.from_pretrained(trained).config == EBM.from_pretrained(run).config
    assert same_weights(trained, run)
