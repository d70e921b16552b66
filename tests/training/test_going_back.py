"""A run that goes back to an earlier checkpoint, or past a damaged one."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from speeds import without_speeds
from test_faults import TENSORS

from ebm_app import train
from ebm_app.training.checkpoint import checkpoints, digests, find_checkpoint
from ebm_app.training.metrics import read_metrics
from ebm_app.utils.errors import UserError
from ebm_app.utils.files import read_json, write_json

pytestmark = pytest.mark.process

SETTINGS = {"num_levels": 17, "device": "cpu", "block_out_channels": (8,), "norm_num_groups": 4}
SETTINGS |= {"num_nodes": 8, "train_batch_size": 4, "validation_images": 4, "logging_steps": 1}
SETTINGS |= {"validation_repeats": 1, "num_preview_images": 1, "max_train_steps": 12}
SETTINGS |= {"checkpointing_steps": 4, "validation_steps": 3}
SETTINGS |= {"lr_scheduler": "constant_with_warmup"}


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(17, (20, 1, 4, 4), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(images, folder, **SETTINGS)
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def names(folder: Path) -> list[str]:
    return [checkpoint.name for checkpoint in checkpoints(folder)]


def steps(folder: Path) -> list[int]:
    rows = read_metrics(folder / "metrics.jsonl")
    return sorted({int(row["step"]) for row in rows})


def same_weights(a: Path, b: Path) -> bool:
    one, other = load_file(a), load_file(b)
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def without_speed(folder: Path) -> list[dict]:
    return without_speeds(read_metrics(folder / "metrics.jsonl"))


def test_going_back_goes_on_in_another_folder(images, whole, run, tmp_path):
    with pytest.raises(UserError, match="has later checkpoints than checkpoint-4"):
        train(images, run, **SETTINGS, resume_from_checkpoint="checkpoint-4")
    again, given = tmp_path / "again", {"resume_from_checkpoint": str(run / "checkpoint-4")}
    train(images, again, **SETTINGS, **given)
    assert steps(again) == list(range(5, 13))
    with pytest.raises(UserError, match="already holds a run"):
        train(images, again, **SETTINGS, **given)
    assert without_speed(again) == without_speed(whole)[-len(without_speed(again)) :]
    assert same_weights(again / "model.safetensors", whole / "model.safetensors")


def test_latest_falls_back_to_the_last_whole_checkpoint(images, whole, run, capsys):
    last, earlier = run / "checkpoint-12", run / "checkpoint-4"
    for name in ("model.safetensors", "state/trainer.safetensors", "state/trainer.json"):
        shutil.copy(earlier / name, last / name)
        with pytest.raises(UserError, match="checkpoint-12.* is not the file that was saved"):
            find_checkpoint(run, "checkpoint-12")
        shutil.copy(whole / "checkpoint-12" / name, last / name)
    (last / "state" / "trainer.json").unlink()
    with pytest.raises(UserError, match="trainer.json is not the file"):
        find_checkpoint(run, "checkpoint-12")
    train(images, run, **SETTINGS, resume_from_checkpoint="latest")
    assert "passing over a damaged checkpoint" in capsys.readouterr().err
    assert without_speed(run) == without_speed(whole)
    assert (run / "checkpoint-12.damaged").is_dir()
    (last / "config.json").unlink()
    assert find_checkpoint(run, "latest").name == "checkpoint-8"
    shutil.copytree(earlier, run / "kept")
    with pytest.raises(UserError, match="already holds a run"):
        find_checkpoint(run, "kept")


def test_records_that_a_crash_left_do_not_keep_a_run_from_going_on(images, whole, run):
    shutil.rmtree(run / "checkpoint-12")
    (run / "run.json").write_text('{"command": [')
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"ste')
    (run / "checkpoint-9.tmp").mkdir()
    users = ["checkpoint-9 old.tmp/a", "checkpoint-12.tmp/a", "run.json.tmp", "notes.tmp"]
    for name in users:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    train(images, run, **SETTINGS, resume_from_checkpoint="latest")
    assert without_speed(run) == without_speed(whole)
    assert all((run / name).read_text() == "mine" for name in users)
    assert len(list(run.glob("*.tmp"))) == len(users)
    assert names(run) == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]


def test_there_is_always_a_way_on(images, tmp_path):
    """Between the first validation and the first checkpoint a run leaves a model alone."""
    run = tmp_path / "run"
    train(images, run, **{**SETTINGS, "max_train_steps": 2})
    for folder in checkpoints(run):
        shutil.rmtree(folder)
    with pytest.raises(UserError, match="or replace it with --overwrite_output_dir"):
        train(images, run, **SETTINGS)
    with pytest.raises(UserError, match="with --overwrite_output_dir in place of this flag"):
        train(images, run, **SETTINGS, resume_from_checkpoint="latest")
    train(images, run, **{**SETTINGS, "max_train_steps": 1}, overwrite_output_dir=True)
    assert read_json(run / "run.json")["figures"]["steps"] == 1


@pytest.mark.parametrize("kind", ["nan", "another", "integers"])
def test_a_best_model_that_does_not_load_never_comes_to_the_top(images, run, kind):
    """Even where the digests are of it."""
    last, top = run / "checkpoint-12", (run / "model.safetensors").read_bytes()
    best = last / "state" / "best.safetensors"
    weights = load_file(best)
    name = next(iter(weights))
    save_file({**weights, name: TENSORS[kind](weights[name]).contiguous()}, best)
    write_json(last / "state" / "digests.json", digests(last))
    with pytest.raises(UserError, match=r"best\.safetensors"):
        train(images, run, **SETTINGS, resume_from_checkpoint="latest")
    assert (run / "model.safetensors").read_bytes() == top


FORGED = {
    "config.json": (b'{"kind": "energy model", "format_version": 1}', "key dataset is missing"),
    "state/trainer.json": (b'{"format_version": 2, "step": []}', "step must be a valid integer"),
    "state/trainer.safetensors": (save({"x": torch.zeros(1)}), "state is damaged"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_fits_its_digest_alone_is_refused(images, run, name):
    last, (content, message) = run / "checkpoint-12", FORGED[name]
    (last / name).write_bytes(content)
    write_json(last / "state" / "digests.json", digests(last))
    with pytest.raises(UserError, match=message):
        train(images, run, **SETTINGS, resume_from_checkpoint="latest")


def test_a_pipe_in_place_of_the_previews_is_not_waited_for(images, run):
    shutil.rmtree(run / "previews")
    os.mkfifo(run / "previews")
    with pytest.raises(FileExistsError):
        train(images, run, **{**SETTINGS, "max_train_steps": 1}, overwrite_output_dir=True)


def test_other_images_are_refused(images, run):
    with pytest.raises(UserError, match="digest of the images was .*, now "):
        train(16 - images, run, **SETTINGS, resume_from_checkpoint="latest")
    digest = read_json(run / "run.json")["settings"]["data"]
    assert list(digest) == ["digest of the images"]


def test_a_long_run_is_read_whole(tmp_path):
    file = tmp_path / "metrics.jsonl"
    line = json.dumps({"step": 1, "loss": 0.5}) + " " * 60_000 + "\n"
    file.write_text(300 * line + '{"ste')
    assert len(read_metrics(file)) == 300
    file.write_text(line + "x\n")
    with pytest.raises(UserError, match="is damaged"):
        read_metrics(file)
