"""Resume from an earlier checkpoint, past a damaged one, or after a crash."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import error_of
from runs import SMALL, equal_tensors, weights_of, without_speeds
from safetensors.torch import save

from ebm_app import EBM, train
from ebm_app.training.checkpoint import checkpoints, digests, find_checkpoint
from ebm_app.training.metrics import read_metrics
from ebm_app.training.trainer import Trainer
from ebm_app.utils.errors import UserError
from ebm_app.utils.files import write_json

pytestmark = pytest.mark.process

SETTINGS = {**SMALL, "num_levels": 17, "num_preview_images": 1, "max_train_steps": 12}
SETTINGS |= {"checkpointing_steps": 4, "validation_steps": 3}
LATEST = {**SETTINGS, "resume_from_checkpoint": "latest"}


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


def rows_of(folder: Path) -> list[dict]:
    return without_speeds(read_metrics(folder / "metrics.jsonl"))


def test_earlier_checkpoint_resumes_in_another_folder(images, whole, run, tmp_path):
    again, by_path = tmp_path / "again", {"resume_from_checkpoint": str(run / "checkpoint-4")}
    assert "later checkpoints" in error_of(train, images, run, **SETTINGS, **by_path)
    train(images, again, **SETTINGS, **by_path)
    assert {row["step"] for row in rows_of(again)} == set(range(5, 13))
    assert "already holds a run" in error_of(train, images, again, **SETTINGS, **by_path)
    assert rows_of(again) == rows_of(whole)[-len(rows_of(again)) :]
    assert equal_tensors(weights_of(again), weights_of(whole))


def test_resume_passes_damage_and_leftovers_of_a_crash(images, whole, run, capsys):
    last, earlier = run / "checkpoint-12", run / "checkpoint-4"
    for name in ("model.safetensors", "state/trainer.safetensors", "state/trainer.json"):
        shutil.copy(earlier / name, last / name)
        assert Path(name).name in error_of(find_checkpoint, run, str(last))
        shutil.copy(whole / "checkpoint-12" / name, last / name)
    (last / "state" / "trainer.json").unlink()
    assert "trainer.json" in error_of(find_checkpoint, run, str(last))
    (run / "run.json").write_text('{"command": [')
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"ste')
    (run / "checkpoint-9.tmp").mkdir()
    (run / "notes.tmp").write_text("mine")
    train(images, run, **LATEST)
    assert "damaged checkpoint" in capsys.readouterr().err
    assert rows_of(run) == rows_of(whole)
    assert len(list(run.glob("checkpoint-12.damaged-*"))) == 1
    assert [path.name for path in run.glob("*.tmp")] == ["notes.tmp"]
    names = [folder.name for folder in checkpoints(run)]
    assert names == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]


@pytest.mark.parametrize("name", ["trainer.safetensors", "best.safetensors"])
def test_forged_files_with_fitting_digests_are_refused(images, run, name):
    last, top = run / "checkpoint-12", (run / "model.safetensors").read_bytes()
    (last / "state" / name).write_bytes(save({"x": torch.zeros(1)}))
    write_json(last / "state" / "digests.json", digests(last))
    message = error_of(train, images, run, **LATEST)
    assert "damaged" in message or name in message
    assert (run / "model.safetensors").read_bytes() == top


def test_best_model_loads_after_a_changed_setting(images, run, monkeypatch):
    """A run resumed twice, the second time from a checkpoint whose best model is older."""
    changed = {**LATEST, "num_nodes": 16, "checkpointing_steps": 2, "validation_steps": 12}
    shutil.rmtree(run / "checkpoint-12")
    train(images, run, **changed)
    shutil.rmtree(run / "checkpoint-12")
    monkeypatch.setattr(Trainer, "fit", Mock(side_effect=UserError("killed")))
    assert "killed" in error_of(train, images, run, **changed)
    assert EBM.from_pretrained(run).config.num_nodes == 16


def test_other_images_are_refused(images, run):
    assert "other images" in error_of(train, 16 - images, run, **LATEST)
