"""One writer at a time in a folder, in real processes."""

import multiprocessing
import os
import signal
import time

import pytest
from conftest import call, load_script

from ebm_app.training.launch import LOCK
from ebm_app.utils.errors import UserError
from ebm_app.utils.output import lock


def keep(path, ready) -> None:
    file = lock(path)
    ready.set()
    time.sleep(60)
    file.close()


def test_a_second_holder_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    path, ready = tmp_path / LOCK, context.Event()
    process = context.Process(target=keep, args=(path, ready))
    process.start()
    assert ready.wait(20)
    with pytest.raises(UserError, match="nother process"):
        lock(path)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with lock(path), pytest.raises(UserError, match="nother process"):
        lock(path)
    lock(path).close()


@pytest.mark.parametrize("name", ["train/ebm.py", "train/flow.py"])
def test_scripts_keep_others_out_of_their_folders(tmp_path, image_folder, capsys, name):
    flags = ["--dataset", f"folder:{image_folder}", "--device", "cpu"]
    with lock(tmp_path / LOCK):
        assert call(load_script(name), *flags, "--output_dir", tmp_path) == 2
    assert "nother process" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()
