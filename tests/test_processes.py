"""Real processes: a killed run resumes bit for bit, and two processes train as one."""

import os
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


def run_and_signal(signum: int, *arguments: object) -> int:
    """Start a run, signal all its processes once step 13 is logged, and return the exit code."""
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
        if lines and lines[-1]["step"] >= 13:
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


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory, image_folder) -> dict[int, Path]:
    """Uninterrupted runs by one process with a batch of 8 and by two with 4 each."""
    folder = tmp_path_factory.mktemp("whole")
    run(1, folder / "1", image_folder, "--train_batch_size", "8")
    run(2, folder / "2", image_folder, "--expect_processes", "2")
    return {1: folder / "1", 2: folder / "2"}


@pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, image_folder, whole_runs, num_processes):
    flags = ["--train_batch_size", str(8 // num_processes)]
    folder = tmp_path / "run"
    code = run_and_signal(signal.SIGKILL, num_processes, folder, image_folder, *flags)
    assert read_json(folder / "run.json")["figures"] is None
    assert code == -signal.SIGKILL and not (folder / "checkpoint-40").exists()
    run(num_processes, folder, image_folder, *flags, "--resume_from_checkpoint", "latest")
    assert_equal_runs(whole_runs[num_processes], folder)


def test_two_processes_train_the_model_of_one_with_twice_the_batch(whole_runs):
    (one, lines_one), (two, lines_two) = (outcome(whole_runs[n]) for n in (1, 2))
    for a, b in zip(lines_one, lines_two, strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    for key in one:
        if key.startswith(("weights.", "ema.")):
            torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_before_it_stops(tmp_path, image_folder, whole_runs, signum):
    folder, flags = tmp_path / "run", ["--train_batch_size", "8"]
    assert run_and_signal(signum, 1, folder, image_folder, *flags) == 128 + signum
    steps = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
    assert max(steps) >= 13 and max(steps) % 10
    run(1, folder, image_folder, *flags, "--resume_from_checkpoint", "latest")
    assert_equal_runs(whole_runs[1], folder)


def test_fewer_processes_than_expected_are_reported(tmp_path, image_folder):
    flags = ["--expect_processes", "2"]
    done = subprocess.run(
        command(1, tmp_path / "run", image_folder, *flags),
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=ENV,
    )
    assert done.returncode == 2
    assert "2 processes were asked for, but 1 started" in done.stderr.splitlines()[-1]
