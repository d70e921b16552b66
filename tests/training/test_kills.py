"""Kills lose nothing, and processes end with their launcher."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from conftest import GREY, ROOT, TINY

from ebm_app.ebm import EBM
from ebm_app.training.checkpoint import (
    checkpoints,
    find_checkpoint,
    save_checkpoint,
    step_of,
    verify,
)
from ebm_app.utils.files import read_json


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
@pytest.mark.process
def test_kill_at_any_file_operation_leaves_a_checkpoint(tmp_path, step):
    whole, run = tmp_path / "whole", tmp_path / "run"
    ebm, trainer = EBM(GREY), {"best": {"validation_loss": 1.0}}
    ebm.save_pretrained(whole)

    def save(folder, step):
        save_checkpoint(folder, step, ebm, {"x": torch.zeros(3)}, trainer, 1)

    for earlier in (4, 8):
        save(whole, earlier)
    operation, is_killed = 0, True
    while is_killed:
        operation += 1
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        is_killed = killed(lambda: save(run, step), operation)
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
    metrics = folder / "metrics.jsonl"
    for _ in range(1200):
        if metrics.exists() and metrics.stat().st_size > 500:
            break
        time.sleep(0.05)
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
