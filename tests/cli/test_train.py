"""Training by the command: help, mistakes, what a run leaves, and replacing a run."""

import json
import shutil

import pytest
import torch
from conftest import SMALL, TINY, call, config_flags, error_of, load_script

from ebm_app.ebm import EBM
from ebm_app.training.build import LOCK
from ebm_app.training.metrics import read_metrics
from ebm_app.utils.files import read_json
from ebm_app.utils.output import lock

train = load_script("train/ebm.py")
#: Flags, settings of a file, and a word of their error
ERRORS = [
    ("--objective nce", {}, "ctsm_v"),
    ("--resume_from_checkpoint latest", {}, "checkpoint"),
    ("--report_to wandb", {}, "wandb"),
    ("--max_train_steps abc", {}, "valid integer"),
    ("", {"lr_decay_steps": 5, "max_train_minutes": 5}, "max_train_steps"),
    ("", {"droput": 0.1}, "'dropout'"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, image_folder):
    """A run of four steps; ``test_processes`` starts the script in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "model"
    settings = {"validation_steps": 2, "checkpointing_steps": 2, "num_preview_images": 4}
    flags = [*config_flags("trained", SMALL | settings), "--max_train_steps", 4]
    flags += ["--dataset", f"folder:{image_folder}", "--output_dir", folder]
    flags += ["--report_to", "tensorboard"]
    figures = train.main([str(flag) for flag in flags])
    assert figures["output_dir"] == str(folder) and figures["steps"] == 4
    assert figures["images_per_second"] > 0 and {"loss", "bits_per_dim", "stderr"} <= set(figures)
    return folder


def same_weights(*folders):
    one, other = (EBM.from_pretrained(folder).state_dict() for folder in folders)
    return all(torch.equal(one[name], other[name]) for name in one)


def test_run_leaves_models_records_curves_and_sample_grids(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "model.safetensors", "metrics.jsonl", "run.json", "loss.png"} <= names
    assert {"checkpoint-2", "checkpoint-4"} <= names
    assert "step-000004.png" in {path.name for path in (trained / "previews").iterdir()}
    assert list(trained.rglob("events.out.tfevents*"))
    rows = read_metrics(trained / "metrics.jsonl")
    assert [row["step"] for row in rows if "validation_bits_per_dim" in row] == [2, 4]
    record = read_json(trained / "run.json")
    assert record["figures"]["steps"] == 4 and record["settings"]["train"]["seed"] == 0
    assert record["versions"]["torch"]
    assert EBM.from_pretrained(trained / "checkpoint-2").config.image_shape == (1, 8, 8)


def test_init_from_starts_with_the_weights(trained, image_folder, tmp_path, capsys):
    flags = ["--dataset", f"folder:{image_folder}", "--max_train_steps", 1]
    flags += [*config_flags("init", SMALL | {"lr_decay_steps": 0}), "--init_from", trained]
    still = [*flags, "--learning_rate", 0, "--output_dir", tmp_path / "still"]
    assert call(train, *still) == 0 and same_weights(trained, tmp_path / "still")
    other = ["--prediction", "moments", "--output_dir", tmp_path / "other"]
    assert call(train, *flags, *other) == 2 and "prediction" in capsys.readouterr().err
    assert not (tmp_path / "other" / "run.json").exists()


def test_config_takes_the_settings_of_a_dry_run(capsys, tmp_path, image_folder):
    data = ["--dataset", f"folder:{image_folder}", "--output_dir", tmp_path / "run", "--dry_run"]
    assert call(train, *data, *TINY, "--learning_rate", "0.01") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["minutes"] == 60 and first["weights"] > 0
    assert first["steps"] * first["seconds_per_step"] == pytest.approx(3600, rel=0.01)
    assert 0 < first["seconds_per_step"] < 60 and 0.1 < first["peak_memory_gib"] < 100
    assert first["train"]["learning_rate"] == 0.01
    assert first["ebm"]["net"]["block_out_channels"] == [8]
    assert not (tmp_path / "run").exists()
    record = {"settings": {"train": first["train"]}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    again = [*data[2:], "--config", tmp_path / "run.json"]  # the data set is that of the run
    changes = ["--learning_rate", "0.02", "--mixed_precision", "no"]
    assert call(train, *again, *changes) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["ebm"] == first["ebm"]
    changed = {"learning_rate": 0.02, "config": str(tmp_path / "run.json"), "device": "auto"}
    assert second["train"] == first["train"] | changed
    assert call(train, *again, "--size", "small") == 0
    third = json.loads(capsys.readouterr().out)
    assert third["ebm"]["net"]["block_out_channels"][0] == 32


def test_short_run_in_minutes_is_explained(capsys, tmp_path):
    """Its minutes have passed when the first step begins."""
    flags = ["--output_dir", tmp_path / "run", "--max_train_minutes", 1e-3, *TINY]
    assert call(train, *flags, "--size", "small") == 0
    printed = capsys.readouterr()
    assert "--size tiny" in printed.err
    figures = json.loads(printed.out.splitlines()[-1])
    assert figures["steps"] == 1 and figures["validation_images"] == 2
    assert read_json(tmp_path / "run" / "run.json")["figures"] == figures
    assert (tmp_path / "run" / "checkpoint-1").is_dir()


def test_run_is_replaced_only_on_request(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    flags = ["--output_dir", run, "--max_train_steps", 1, *TINY]
    assert call(train, *flags) == 2 and "already" in capsys.readouterr().err
    refused = [*flags, "--overwrite_output_dir", "--init_from", "mnist"]
    assert call(train, *refused) == 2 and (run / "checkpoint-4").is_dir()
    assert call(train, *flags, "--overwrite_output_dir") == 0
    names = {path.name for path in run.iterdir()}
    assert "checkpoint-4" not in names and {"checkpoint-1", "notes.txt"} <= names


@pytest.mark.parametrize(("words", "settings", "word"), ERRORS)
def test_error_is_one_sentence(capsys, tmp_path, words, settings, word):
    flags = [*config_flags("error", SMALL | settings), *words.split()]
    assert call(train, "--output_dir", tmp_path / "run", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and len(error.strip().splitlines()) == 1
    assert word in error


def test_locked_folder_is_refused(tmp_path, image_folder, capsys):
    flags = ["--dataset", f"folder:{image_folder}", "--device", "cpu", "--output_dir", tmp_path]
    with lock(tmp_path / LOCK):
        assert call(train, *flags) == 2
        assert "nother process" in error_of(lock, tmp_path / LOCK)
    assert "nother process" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()
