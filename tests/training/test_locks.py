"""One training run per output folder, in real processes."""

import multiprocessing
import os
import signal
import time

from conftest import call, error_of, load_script

from ebm_app.training.launch import LOCK
from ebm_app.utils.output import lock


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
