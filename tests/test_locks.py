"""One writer at a time in a folder, in real processes."""

import multiprocessing
import os
import signal
import time

import forked
import pytest
from conftest import TINY, call, error_of, load_script

from ebm_app.io.errors import UserError
from ebm_app.io.locks import Lock


def hold(path, ready) -> None:
    lock = Lock(path)
    ready.set()
    time.sleep(60)
    lock.release()


def test_a_second_holder_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    path, ready = tmp_path / "new" / "run.lock", context.Event()
    process = context.Process(target=hold, args=(path, ready))
    process.start()
    assert ready.wait(20)
    with pytest.raises(UserError, match=f"is being written by process {process.pid} on "):
        Lock(path)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert path.exists()  # left behind, and held by nobody
    with Lock(path), pytest.raises(UserError, match=f"process {os.getpid()} on "):
        Lock(path)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{\n" * 1000, b"\xff\0", b"process 3 on host"])
def test_a_lock_file_of_any_content_refuses_in_one_sentence(tmp_path, content):
    path = tmp_path / "run.lock"
    with Lock(path):
        path.write_bytes(content)
        message = error_of(Lock, path)
        assert ": wait for it" in message and len(message.splitlines()) == 1


def test_a_training_keeps_others_out_of_its_folder(tmp_path, image_folder):
    flags = ["--dataset", f"folder:{image_folder}", "--output_dir", tmp_path / "run", *TINY]
    with Lock(tmp_path / "run" / "run.lock"):
        (code,) = forked.run("train/ebm.py", [*flags, "--max_train_steps", "1"], tmp_path / "out")
        assert code == 2
    assert not (tmp_path / "run" / "run.json").exists()
    (code,) = forked.run("train/ebm.py", [*flags, "--max_train_steps", "1"], tmp_path / "out")
    assert code == 0 and not (tmp_path / "run" / "run.lock").exists()


def test_two_evaluations_do_not_share_a_record(tmp_path, folder, capsys):
    flags = [folder / "grey", "--limit", "2", "--repeats", "1", "--output_dir", tmp_path]
    module = load_script("evaluate/bpd.py")
    with Lock(tmp_path / "bpd.json.lock"):
        assert call(module, *flags) == 2
    assert "is being written by process" in capsys.readouterr().err
    assert call(module, *flags) == 0
