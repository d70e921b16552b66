"""Forty kills at any moment of a training lose nothing."""

import os
import random
import signal
import time

import forked
import pytest
import torch
from conftest import TINY
from safetensors.torch import load_file
from speeds import without_speeds

from ebm_app.io.records import read_json
from ebm_app.training.checkpoint import checkpoints, verify
from ebm_app.training.metrics import read_metrics

KILLS, STEPS = 40, 400
#: something is written in most moments
OFTEN = ["--checkpointing_steps", "2", "--validation_steps", "3", "--num_preview_images", "1"]


def outcome(folder):
    state = load_file(folder / f"checkpoint-{STEPS}" / "state" / "trainer.safetensors")
    rows = without_speeds(read_metrics(folder / "metrics.jsonl"))
    return state, rows, load_file(folder / "model.safetensors")


def wait_for_a_line(path):
    """Until the metrics grow."""
    size = path.stat().st_size if path.exists() else 0
    for _ in range(600):
        if path.exists() and path.stat().st_size > size:
            return
        time.sleep(0.05)


@pytest.mark.slow
def test_forty_kills_lose_nothing(tmp_path, image_folder):
    rng, folder, kills = random.Random(0), tmp_path / "run", 0
    flags = ["--dataset", f"folder:{image_folder}", *TINY, *OFTEN, "--max_train_steps", STEPS]
    while kills < KILLS:
        resumed = ["--resume_from_checkpoint", "latest"] if checkpoints(folder) else []
        start = resumed or ["--overwrite_output_dir"]
        given = [*flags, "--output_dir", folder, *start]
        process = forked.start("train/ebm.py", given, tmp_path / "log")
        if kills % 4:  # else while it starts
            wait_for_a_line(folder / "metrics.jsonl")
        time.sleep(rng.uniform(0.0, 1.0))
        assert process.is_alive(), "the run ended too early for its kills"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
        for checkpoint in checkpoints(folder):
            verify(checkpoint)
        if (folder / "run.json").exists():
            read_json(folder / "run.json")
    resume = [*flags, "--output_dir", folder, "--resume_from_checkpoint", "latest"]
    assert forked.run("train/ebm.py", resume, tmp_path / "log") == {0}
    whole = [*flags, "--output_dir", tmp_path / "whole"]
    assert forked.run("train/ebm.py", whole, tmp_path / "log") == {0}
    (state, rows, best), (state_of_whole, rows_of_whole, best_of_whole) = (
        outcome(path) for path in (folder, tmp_path / "whole")
    )
    assert rows == rows_of_whole
    for own, other in ((state, state_of_whole), (best, best_of_whole)):
        assert own.keys() == other.keys()
        assert all(torch.equal(own[key], other[key]) for key in own)
    assert not list(folder.glob("set-aside-*")) and not list(folder.glob("*.tmp"))
