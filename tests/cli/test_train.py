"""Training by the command: what a run leaves, its settings, and replacing a run."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
from conftest import TINY, call

from ebm_app.cli import train
from ebm_app.ebm import EBM


@pytest.fixture(scope="module")
def trained(tmp_path_factory, image_folder):
    """A run of four steps; ``test_processes`` starts the script in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "model"
    flags = "--max_train_steps 4 --validation_steps 2 --checkpointing_steps 2".split()
    flags += ["--dataset", f"folder:{image_folder}", "--output_dir", folder, *TINY]
    flags += "--num_preview_images 4 --report_to tensorboard".split()
    with redirect_stdout(StringIO()) as out:
        assert call(train, *flags) == 0
    figures = json.loads(out.getvalue().splitlines()[-1])
    assert figures["output_dir"] == str(folder) and figures["steps"] == 4
    assert figures["images_per_second"] > 0 and {"loss", "bits_per_dim"} <= set(figures)
    return folder


def test_run_leaves_model_records_and_previews(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "model.safetensors", "metrics.jsonl", "run.json", "loss.png"} <= names
    assert {"checkpoint-2", "checkpoint-4"} <= names
    assert len(list((trained / "previews").glob("*.png"))) == 2
    assert list(trained.rglob("events.out.tfevents*"))
    record = json.loads((trained / "run.json").read_text())
    assert record["figures"]["steps"] == 4 and record["settings"]["training"]["seed"] == 0
    assert record["versions"]["torch"]
    for folder in (trained, trained / "checkpoint-2"):
        assert EBM.from_pretrained(folder).config.image_shape == (1, 8, 8)


@pytest.mark.process
def test_init_from_starts_with_the_weights(trained, image_folder, tmp_path, capsys):
    flags = ["--dataset", f"folder:{image_folder}", *TINY, "--max_train_steps", 1]
    flags += ["--lr_scheduler", "constant_with_warmup", "--init_from", trained]
    still = [*flags, "--learning_rate", 0, "--output_dir", tmp_path / "still"]
    assert call(train, *still) == 0
    weights = [EBM.from_pretrained(run).state_dict() for run in (trained, tmp_path / "still")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    resumed = ["--max_train_steps", 2, "--resume_from_checkpoint", "latest"]
    assert call(train, *still, *resumed) == 0
    record = json.loads((tmp_path / "still" / "run.json").read_text())
    assert record["settings"]["init_from"] == {"model": str(trained)}
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


def test_run_is_replaced_only_on_request(capsys, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "notes.txt").write_text("mine")
    flags = ["--output_dir", run, "--max_train_steps", 1, *TINY]
    assert call(train, *flags) == 2 and "already" in capsys.readouterr().err
    assert call(train, *flags, "--overwrite_output_dir") == 0
    names = {path.name for path in run.iterdir()}
    assert "checkpoint-4" not in names and "checkpoint-1" in names
    assert (run / "notes.txt").read_text() == "mine"


@pytest.mark.process
def test_resume_by_folder_restores_data_and_settings(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "checkpoint-4")
    flags = ["--resume_from_checkpoint", "latest", "--output_dir", run]
    contradictions = {
        "dataset digits": "dataset",
        "size base": "block_out_channels",
        "learning_rate 0.5": "learning_rate",
        "expect_processes 3": "processes",
    }
    for words, message in contradictions.items():
        assert call(train, *flags, *f"--{words}".split()) == 2
        assert message in capsys.readouterr().err
    assert call(train, *flags) == 0
    assert "Training on 1 x cpu" in capsys.readouterr().err
    one, other = (EBM.from_pretrained(folder) for folder in (trained, run))
    assert one.config == other.config
    weights = other.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())
