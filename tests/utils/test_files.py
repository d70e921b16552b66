"""Reading and writing files: atomic, never blocking, and one line for each mistake."""

import errno
import json
import os
import resource
from unittest.mock import Mock

import pytest
from conftest import TINY, call, load_script

import bpd
from ebm_app.utils.files import read_json, write_json

train = load_script("train/ebm.py")


def test_readers_see_the_old_file_until_the_new_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_json(path, {"step": 1})
    seen, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(read_json(path)), sync(file)))
    write_json(path, {"step": 2})
    assert seen[0] == {"step": 1} and read_json(path) == {"step": 2}


@pytest.fixture
def fail(folder, image_folder, capsys):
    """Run a command that cannot write to its folder; return what it printed and its last error."""

    def fail(command, output):
        words = [folder / "grey", "--limit", 2, "--repeats", 1]
        if command is train:
            words = ["--dataset", f"folder:{image_folder}", *TINY, "--max_train_steps", 2]
        assert call(command, *words, "--output_dir", output) == 2
        out, error = capsys.readouterr()
        return out.strip(), error.strip().splitlines()[-1]

    return fail


PLACES = [(train, "file/run"), (bpd, "loop")]


@pytest.mark.parametrize(("command", "place"), PLACES)
def test_unwritable_folder_is_refused_before_the_run(tmp_path, fail, command, place):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    out, error = fail(command, tmp_path / place)
    assert error.startswith("error: ") and str((tmp_path / place).parent) in error and not out


def test_metrics_are_printed_if_the_disk_is_full(tmp_path, fail, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    out, error = fail(bpd, tmp_path / "output")
    assert "bits_per_dim" in json.loads(out.splitlines()[-1])
    assert error.startswith("error: ") and "No space left on device" in error
    assert str(tmp_path / "output") in error


def test_error_of_a_full_disk_names_the_checkpoint(tmp_path, fail):
    """A limit on the size of files fails in ``write``, as a full disk does, and names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        _, error = fail(train, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in error and ".safetensors" in error
