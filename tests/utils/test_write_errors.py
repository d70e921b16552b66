"""Unwritable output: an error before the computation, and printed figures after it."""

import errno
import json
import os
import resource

import pytest
from conftest import TINY, call, load_script

from ebm_app.utils.errors import user_message

#: Script -> flags of a short run
SCRIPTS = {
    "evaluate/bpd.py": ["{model}", "--limit", "2", "--repeats", "1"],
    "train/ebm.py": ["--dataset", "folder:{images}", *TINY, "--max_train_steps", "2"],
}
PLACES = [("train/ebm.py", "file/run")]
PLACES += [("evaluate/bpd.py", place) for place in ("file", "loop", "x" * 300)]


def run(script, folder, image_folder, output):
    names = {"model": str(folder / "grey"), "images": str(image_folder)}
    words = [word.format(**names) for word in SCRIPTS[script]]
    assert call(load_script(script), *words, "--output_dir", output) == 2


@pytest.mark.parametrize(("script", "place"), PLACES)
def test_unwritable_folder_is_refused_before_the_run(
    tmp_path, folder, image_folder, capsys, script, place
):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    output = tmp_path / place
    run(script, folder, image_folder, output)
    out, error = capsys.readouterr()
    assert error.splitlines()[-1].startswith("error: ") and str(output.parent) in error
    assert not out.strip()


def test_figures_are_printed_if_the_disk_is_full(
    tmp_path, folder, image_folder, capsys, monkeypatch
):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    run("evaluate/bpd.py", folder, image_folder, tmp_path / "output")
    out, error = capsys.readouterr()
    assert "bits_per_dim" in json.loads(out.strip().splitlines()[-1])
    last = error.strip().splitlines()[-1]
    assert last.startswith("error: ") and "No space left on device" in last
    assert str(tmp_path / "output") in last


def test_error_of_a_full_disk_names_the_checkpoint(tmp_path, folder, image_folder, capsys):
    """A limit on the size of files fails in ``write``, as a full disk does, and names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        run("train/ebm.py", folder, image_folder, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    last = capsys.readouterr().err.splitlines()[-1]
    assert "File too large" in last and ".safetensors" in last


def test_import_without_memory_is_reported():
    error = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    assert user_message(error).startswith("Out of memory")
