"""Kills lose nothing, and processes end with their launcher."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import forked
import psutil
import pytest
import torch
from conftest import GREY, ROOT, TINY
from runs import equal_tensors, without_speeds
from safetensors.torch import load_file

from ebm_app.ebm import EBM
from ebm_app.training.checkpoint import (
    checkpoints,
    find_checkpoint,
    save_checkpoint,
    step_of,
    verify,
)
from ebm_app.training.metrics import read_metrics
from ebm_app.utils.files import read_json

KILLS, STEPS = 40, 400
#: Flags with which files are written most of the time
OFTEN = ["--checkpointing_steps", "2", "--validation_steps", "3", "--num_preview_images", "1"]


def outcome(folder):
    rows = without_speeds(read_metrics(folder / "metrics.jsonl"))
    state = load_file(folder / f"checkpoint-{STEPS}" / "state" / "trainer.safetensors")
    return rows, state | load_file(folder / "model.safetensors")


def wait_for_a_line(path, size=None):
    """Wait until the metrics grow, or exceed a size."""
    size = size or (path.stat().st_size if path.exists() else 0)
    for _ in range(1200):
        if path.exists() and path.stat().st_size > size:
            return
        time.sleep(0.05)


@pytest.mark.slow
def test_forty_kills_lose_nothing(tmp_path, image_folder):
    rng, folder = random.Random(0), tmp_path / "run"
    flags = ["--dataset", f"folder:{image_folder}", *TINY, *OFTEN, "--max_train_steps", STEPS]
    resume = ["--output_dir", folder, "--resume_from_checkpoint", "latest"]
    anew = ["--output_dir", folder, "--overwrite_output_dir"]
    for kill in range(KILLS):
        given = [*flags, *(resume if checkpoints(folder) else anew)]
        process = forked.start("train/ebm.py", given, tmp_path / "log")
        if kill % 4:  # otherwise while it starts
            wait_for_a_line(folder / "metrics.jsonl")
        time.sleep(rng.uniform(0.0, 1.0))
        assert process.is_alive(), "the run ended too early for its kills"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        for checkpoint in checkpoints(folder):
            verify(checkpoint)
        if (folder / "run.json").exists():
            read_json(folder / "run.json")
    for last in (resume, ["--output_dir", tmp_path / "whole"]):
        assert forked.run("train/ebm.py", [*flags, *last], tmp_path / "log") == {0}
    (rows, tensors), (rows_of_whole, whole) = outcome(folder), outcome(tmp_path / "whole")
    assert rows == rows_of_whole and equal_tensors(tensors, whole)
    assert not list(folder.glob("checkpoint-*.tmp"))


def killed(work, number):
    """Run ``work`` in a fork that is killed at file operation ``number`` = 1, 2, ...; return
    whether it came so far."""
    if process := os.fork():
        return os.WIFSIGNALED(os.waitpid(process, 0)[1])
    count = 0

    def operation(event, args):
        nonlocal count
        count += event == "open" or event.startswith(("os.", "shutil."))
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(operation)
    try:
        work()
    finally:
        os._exit(0)


@pytest.mark.parametrize("step", [8, 12])
@pytest.mark.parametrize("limit", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
@pytest.mark.process
def test_kill_at_any_file_operation_leaves_a_checkpoint(tmp_path, limit, step):
    whole, run = tmp_path / "whole", tmp_path / "run"
    ebm, trainer = EBM(GREY), {"best": {"validation_loss": 1.0}}
    ebm.save_pretrained(whole)

    def save(folder, step, limit):
        save_checkpoint(folder, step, ebm, {"x": torch.zeros(3)}, trainer, limit)

    for earlier in (4, 8):
        save(whole, earlier, limit)
    operation, is_killed = 0, True
    while is_killed:
        operation += 1
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        is_killed = killed(lambda: save(run, step, limit), operation)
        for checkpoint in checkpoints(run):
            verify(checkpoint)
        assert step_of(find_checkpoint(run, "latest")) >= 8
    assert operation > 30


@pytest.mark.process
@pytest.mark.parametrize("num", [1, 2])
def test_processes_end_with_a_killed_launcher(tmp_path, image_folder, num):
    folder, never = tmp_path / "run", "1000000"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", str(num), ROOT / "train" / "ebm.py", *TINY]
    command += ["--dataset", f"folder:{image_folder}", "--output_dir", folder]
    command += ["--max_train_steps", never, "--checkpointing_steps", never]
    command += ["--validation_steps", never]
    with open(tmp_path / "log", "w") as log:
        launcher = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    wait_for_a_line(folder / "metrics.jsonl", 500)
    workers = psutil.Process(launcher.pid).children(recursive=True)
    assert len(workers) >= num
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    for process in alive:
        process.kill()
    assert not alive
    (saved,) = folder.glob("checkpoint-*")
    assert read_json(saved / "state" / "trainer.json")["step"] > 0
