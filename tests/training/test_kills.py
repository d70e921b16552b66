"""Kills lose nothing, processes end with their launcher, and one run uses a folder."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from conftest import GREY, ROOT, TINY, call, error_of

from ebm_app.cli import train
from ebm_app.ebm import EBM
from ebm_app.training.checkpoint import (
    checkpoints,
    find_checkpoint,
    save_checkpoint,
    verify,
)
from ebm_app.training.launch import LOCK
from ebm_app.utils.files import read_json
from ebm_app.utils.output import lock


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


@pytest.mark.process
def test_kill_at_any_file_operation_leaves_a_checkpoint(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    ebm, trainer = EBM(GREY), {"best": {"validation_loss": 1.0}}
    ebm.save_pretrained(whole)

    def save(folder):
        save_checkpoint(folder, ebm, {"x": torch.zeros(3)}, trainer, 1)

    for earlier in ("checkpoint-4", "checkpoint-8"):
        save(whole / earlier)
    steps, is_killed = [], True
    while is_killed:  # at the first file operation, the second, ... of a fresh copy
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        is_killed = killed(lambda: save(run / "checkpoint-12"), len(steps) + 1)
        for checkpoint in checkpoints(run):
            verify(checkpoint)
        steps.append(find_checkpoint(run, "latest").name)
    assert len(steps) > 30 and set(steps) == {"checkpoint-8", "checkpoint-12"}


@pytest.mark.process
def test_processes_end_with_a_killed_launcher(tmp_path, image_folder):
    folder, never = tmp_path / "run", "1000000"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", ROOT / "train" / "ebm.py", *TINY]
    command += ["--dataset", f"folder:{image_folder}", "--output_dir", folder]
    for name in ("max_train_steps", "checkpointing_steps", "validation_steps"):
        command += [f"--{name}", never]
    with open(tmp_path / "log", "w") as log:
        launcher = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    metrics = folder / "metrics.jsonl"
    for _ in range(1200):
        if metrics.exists() and metrics.stat().st_size > 500:
            break
        time.sleep(0.05)
    workers = psutil.Process(launcher.pid).children(recursive=True)
    assert len(workers) >= 2
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    for process in alive:
        process.kill()
    assert not alive
    (saved,) = folder.glob("checkpoint-*")
    assert read_json(saved / "state" / "trainer.json")["step"] > 0


def test_locked_folder_refuses_a_run(tmp_path, image_folder, capsys):
    flags = ["--dataset", f"folder:{image_folder}", "--device", "cpu", "--output_dir", tmp_path]
    with lock(tmp_path / LOCK):
        assert call(train, *flags) == 2
        assert "nother process" in error_of(lock, tmp_path / LOCK)
    assert "nother process" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()
