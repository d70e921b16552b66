"""Runs in real processes: exact resumes after signals and kills, several processes against one."""

import os
import shutil
import signal
import subprocess
import sys
import time

import forked
import psutil
import pytest
import torch
from conftest import GREY, ROOT, SMALL, TINY, config_flags, equal_tensors, without_speeds
from safetensors.torch import load_file

from ebm_app.ebm import EBM
from ebm_app.training import loop
from ebm_app.training.checkpoint import State, checkpoints, find_checkpoint, read_state, save
from ebm_app.training.metrics import read_metrics
from ebm_app.utils.files import read_json

STEPS = config_flags("short", SMALL | {"checkpointing_steps": 4, "validation_steps": 6})
STEPS += ["--max_train_steps", "12"]
#: The rate of Adam: Muon's steps of equal size enlarge the rounding errors of small gradients
STEPS += ["--learning_rate", "1e-3"]
WHOLE = ["--train_batch_size", "8"]
RESUME = ["--resume_from_checkpoint", "latest"]


@pytest.fixture(scope="module")
def train(image_folder):
    def run(folder, *flags, num=1, stop=(), steps=STEPS):
        words = ["--dataset", f"folder:{image_folder}", "--output_dir", folder, *steps]
        output = folder.with_suffix(".txt")
        return forked.run("train/ebm.py", [*words, *flags], output, num, stop)

    return run


def outcome(folder):
    state = load_file(folder / "checkpoint-12" / "state" / "state.safetensors")
    return state, without_speeds(read_metrics(folder / "metrics.jsonl"))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, train):
    """The state and the metrics of an uninterrupted run of one process with a batch of 8."""
    folder = tmp_path_factory.mktemp("whole") / "1"
    assert train(folder, *WHOLE) == {0}
    return outcome(folder)


def test_stopped_and_killed_run_resumes_bit_for_bit(tmp_path, train, whole_run):
    """SIGINT and SIGTERM save a checkpoint; SIGKILL leaves the last one. An interrupted
    validation is repeated."""
    folder = tmp_path / "run"
    stop = ("batch", 1, signal.SIGINT)
    assert train(folder, *WHOLE, stop=stop) == {128 + signal.SIGINT}
    assert (folder / "checkpoint-2").exists()
    stop = ("validate", 6, signal.SIGTERM)
    assert train(folder, *WHOLE, *RESUME, stop=stop) == {128 + signal.SIGTERM}
    state = read_json(folder / "checkpoint-6" / "state" / "state.json")
    assert state["step"] == 6 and state["validated"] == 0
    stop = ("batch", 9, signal.SIGKILL)
    assert train(folder, *WHOLE, *RESUME, stop=stop) == {-signal.SIGKILL}
    assert read_json(folder / "run.json")["figures"] is None
    assert not (folder / "checkpoint-12").exists()
    assert train(folder, *WHOLE, *RESUME) == {0}
    (tensors, rows), (whole_tensors, whole_rows) = outcome(folder), whole_run
    assert rows == whole_rows and equal_tensors(tensors, whole_tensors)


def test_two_processes_match_one_with_twice_the_batch(tmp_path, train, whole_run):
    """Also if both are stopped and resumed."""
    stop = ("validate", 6, signal.SIGTERM)
    assert train(tmp_path / "2", num=2, stop=stop) == {128 + signal.SIGTERM}
    assert train(tmp_path / "2", *RESUME, num=2) == {0}
    (one, lines_one), (two, lines_two) = whole_run, outcome(tmp_path / "2")
    for a, b in zip(lines_one, lines_two, strict=True):
        assert a.keys() == b.keys()
        for name, value in b.items():
            # a standard error has the rounding error of the bits, of order 10 in float32
            rounding = 1e-6 if name.endswith("_stderr") else 1e-12
            assert a[name] == pytest.approx(value, rel=1e-5, abs=rounding), name
    for key in one:
        if key.startswith(("weights.", "ema.")):
            torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_timed_run_has_equal_steps_on_all_processes(tmp_path, train, monkeypatch):
    """Different numbers of steps would leave a process waiting for the other. The second process
    starts 3 seconds earlier."""
    fit = loop.fit

    def fit_after_start(accelerator, config, task, output, start, resumed):
        start -= 3.0 * accelerator.process_index
        return fit(accelerator, config, task, output, start, resumed)

    monkeypatch.setattr(loop, "fit", fit_after_start)
    folder = tmp_path / "2"
    assert train(folder, "--max_train_minutes", "0.2", num=2, steps=TINY) == {0}
    record = read_json(folder / "run.json")
    steps, began = (record["figures"][name] for name in ("steps", "decay_began"))
    assert (folder / f"checkpoint-{steps}").is_dir() and 0 < began < steps
    assert record["figures"]["seconds"] == pytest.approx(12, abs=4)


def test_death_of_a_process_ends_the_others(tmp_path, train):
    begin = time.perf_counter()
    stop = ("batch", 5, signal.SIGKILL, 1)
    code = train(tmp_path / "2", num=2, stop=stop)
    assert code == {2, -signal.SIGKILL} and time.perf_counter() - begin < 60
    assert "Traceback" not in (tmp_path / "2.txt").read_text()


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


def test_kill_at_any_file_operation_leaves_a_checkpoint(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    ebm, state = EBM(GREY), State({}, 1, best={"validation_loss": 1.0})
    weights = dict(ebm.state_dict())
    ebm.save_pretrained(whole)

    def save_in(folder):
        save(folder, ebm, {"x": torch.zeros(3)}, state, 1)

    for earlier in ("checkpoint-4", "checkpoint-8"):
        save_in(whole / earlier)
    steps, is_killed = [], True
    while is_killed:  # at the first file operation, the second, ... of a fresh copy
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        is_killed = killed(lambda: save_in(run / "checkpoint-12"), len(steps) + 1)
        for checkpoint in checkpoints(run):
            assert read_state(checkpoint).best == state.best
            assert load_file(checkpoint / "state" / "state.safetensors").keys() == {"x"}
            assert equal_tensors(load_file(checkpoint / "state" / "best.safetensors"), weights)
            assert equal_tensors(dict(EBM.from_pretrained(checkpoint).state_dict()), weights)
        steps.append(find_checkpoint(run, "latest").name)
    assert len(steps) > 30 and set(steps) == {"checkpoint-8", "checkpoint-12"}


@pytest.mark.slow
def test_processes_end_with_a_killed_launcher(tmp_path, image_folder):
    folder, never = tmp_path / "run", 1000000
    command = [sys.executable, *"-m torch.distributed.run --standalone --nproc_per_node 2".split()]
    command += [ROOT / "train" / "ebm.py", "--dataset", f"folder:{image_folder}"]
    command += config_flags(
        "long", SMALL | {"checkpointing_steps": never, "validation_steps": never}
    )
    command += ["--max_train_steps", never, "--output_dir", folder]
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
    assert read_json(saved / "state" / "state.json")["step"] > 0
