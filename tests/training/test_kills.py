"""Kills lose nothing, processes end with their launcher, and one run uses a folder."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from conftest import GREY, ROOT, TINY, call, error_of, load_script

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


@pytest.mark.parametrize("step", [8, 12])
@pytest.mark.process
def test_kill_at_any_file_operation_leaves_a_checkpoint(tmp_path, step):
    whole, run = tmp_path / "whole", tmp_path / "run"
    ebm, trainer = EBM(GREY), {"best": {"validation_loss": 1.0}}
    ebm.save_pretrained(whole)

    def save(folder, step):
        save_checkpoint(folder / f"checkpoint-{step}", ebm, {"x": torch.zeros(3)}, trainer, 1)

    for earlier in (4, 8):
        save(whole, earlier)
    steps, is_killed = [], True
    while is_killed:  # at the first file operation, the second, ... of a fresh copy
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        is_killed = killed(lambda: save(run, step), len(steps) + 1)
        for checkpoint in checkpoints(run):
            verify(checkpoint)
        steps.append(find_checkpoint(run, "latest").name)
    assert len(steps) > 30 and set(steps) == {"checkpoint-8", f"checkpoint-{step}"}


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


def hold(path, ready) -> None:
    with lock(path):
        ready.set()
        time.sleep(60)


def test_lock_refuses_a_script_and_ends_with_its_process(tmp_path, image_folder, capsys):
    context = multiprocessing.get_context("fork")
    path, ready = tmp_path / LOCK, context.Event()
    process = context.Process(target=hold, args=(path, ready))
    process.start()
    assert ready.wait(20)
    flags = ["--dataset", f"folder:{image_folder}", "--device", "cpu"]
    assert call(load_script("train/ebm.py"), *flags, "--output_dir", tmp_path) == 2
    assert "nother process" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with lock(path):
        assert "nother process" in error_of(lock, path)
