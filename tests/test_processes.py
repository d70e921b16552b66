"""Real processes: a killed run resumes bit for bit, and two processes train as one."""

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY
from safetensors.torch import load_file

from ebm_app.models.config import read_json
from ebm_app.training.metrics import read_metrics

STEPS = ["--max_train_steps", "40", "--checkpointing_steps", "10", "--validation_steps", "20"]


def command(num_processes: int, folder: Path, image_folder: Path, *flags: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(num_processes)]
    launcher += ["--master_addr", "127.0.0.1", "--master_port", str(port)]
    script = ["train/ebm.py", "--dataset", f"folder:{image_folder}", "--output_dir", str(folder)]
    started = launcher if num_processes > 1 else []
    return [sys.executable, *started, *script, *STEPS, *TINY, *flags]


def run(*arguments: object) -> None:
    done = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, env=ENV)
    assert done.returncode == 0, done.stderr


def run_and_signal(signum: int, step: int, *arguments: object) -> int:
    """Start a run, signal all its processes once ``step`` is logged, and return the exit code."""
    folder = arguments[1]
    process = subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env=ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        lines = read_metrics(folder / "metrics.jsonl")
        if lines and lines[-1]["step"] >= step:
            os.killpg(process.pid, signum)
            return process.wait(60)
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("the run ended or stood still before it could be signalled")


ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def outcome(folder: Path) -> tuple[dict, list]:
    state = load_file(folder / "checkpoint-40" / "state" / "trainer.safetensors")
    lines = read_metrics(folder / "metrics.jsonl")
    for line in lines:
        line.pop("images_per_second", None)
    return state, lines


def assert_equal_runs(a: Path, b: Path) -> None:
    (tensors_a, lines_a), (tensors_b, lines_b) = outcome(a), outcome(b)
    assert lines_a == lines_b
    assert tensors_a.keys() == tensors_b.keys()
    assert all(torch.equal(tensors_a[key], tensors_b[key]) for key in tensors_a)


def run_here(folder: Path, image_folder: Path, *flags: str) -> None:
    """A run of one process: this one."""
    main = runpy.run_path(str(ROOT / "train" / "ebm.py"))["main"]
    main([*command(1, folder, image_folder, *flags)[2:]])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, image_folder) -> Path:
    """An uninterrupted run of one process with a batch of 8."""
    folder = tmp_path_factory.mktemp("whole") / "1"
    run_here(folder, image_folder, "--train_batch_size", "8")
    return folder


def test_a_run_that_was_stopped_and_then_killed_resumes_bit_for_bit(
    tmp_path, image_folder, whole_run
):
    """SIGTERM saves a checkpoint first; after SIGKILL the last one stands."""
    folder, flags = tmp_path / "run", ["--train_batch_size", "8"]
    signalled = (folder, image_folder, *flags)
    assert run_and_signal(signal.SIGTERM, 13, 1, *signalled) == 128 + signal.SIGTERM
    steps = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
    assert max(steps) >= 13 and max(steps) % 10
    resume = ["--resume_from_checkpoint", "latest"]
    assert run_and_signal(signal.SIGKILL, 25, 1, *signalled, *resume) == -signal.SIGKILL
    assert read_json(folder / "run.json")["figures"] is None
    assert not (folder / "checkpoint-40").exists()
    run_here(folder, image_folder, *flags, *resume)
    assert_equal_runs(whole_run, folder)


@pytest.mark.slow
def test_two_processes_that_were_killed_resume_bit_for_bit(tmp_path, image_folder):
    whole, folder, flags = tmp_path / "whole", tmp_path / "run", ["--expect_processes", "2"]
    run(2, whole, image_folder, *flags)
    assert run_and_signal(signal.SIGKILL, 13, 2, folder, image_folder, *flags) == -signal.SIGKILL
    run(2, folder, image_folder, *flags, "--resume_from_checkpoint", "latest")
    assert_equal_runs(whole, folder)


def test_two_processes_train_the_model_of_one_with_twice_the_batch(
    tmp_path, image_folder, whole_run
):
    run(2, tmp_path / "2", image_folder, "--expect_processes", "2")
    (one, lines_one), (two, lines_two) = outcome(whole_run), outcome(tmp_path / "2")
    for a, b in zip(lines_one, lines_two, strict=True):
        assert a.keys() == b.keys()
        for name, value in b.items():
            # a standard error is as exact as the bits, of order 10 in float32, that it is of
            rounding = 1e-6 if name.endswith("_stderr") else 1e-12
            assert a[name] == pytest.approx(value, rel=1e-5, abs=rounding), name
    for key in one:
        if key.startswith(("weights.", "ema.")):
            torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_ctrl_c_saves_before_it_stops(tmp_path, image_folder, whole_run):
    folder, flags = tmp_path / "run", ["--train_batch_size", "8"]
    code = run_and_signal(signal.SIGINT, 13, 1, folder, image_folder, *flags)
    assert code == 128 + signal.SIGINT
    run_here(folder, image_folder, *flags, "--resume_from_checkpoint", "latest")
    assert_equal_runs(whole_run, folder)
