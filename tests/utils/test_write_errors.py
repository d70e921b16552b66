"""Unwritable output: an error before the computation, and printed figures after it."""

import builtins
import errno
import io
import json
import os

import pytest
from conftest import TINY, call, load_script

#: Script -> flags of a short run
SCRIPTS = {
    "evaluate/bpd.py": ["{model}", "--limit", "2", "--repeats", "1"],
    "sample/ebm.py": ["{model}", "--num_images", "2", "--num_steps", "2"],
    "evaluate/bounds.py": ["--quick"],
    "train/ebm.py": ["--dataset", "folder:{images}", *TINY, "--max_train_steps", "2"],
    "train/flow.py": "--dataset folder:{images} --flow gaussian --device cpu".split(),
}


def flags_of(script, folder, image_folder, output):
    names = {"model": str(folder / "grey"), "images": str(image_folder)}
    return [*(word.format(**names) for word in SCRIPTS[script]), "--output_dir", str(output)]


PLACES = [(script, "file/run") for script in SCRIPTS]
PLACES += [("evaluate/bpd.py", place) for place in ("file", "loop", "x" * 300)]


@pytest.mark.parametrize(("script", "place"), PLACES)
def test_unwritable_folder_is_refused_before_the_run(
    tmp_path, folder, image_folder, capsys, script, place
):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    output = tmp_path / place
    assert call(load_script(script), *flags_of(script, folder, image_folder, output)) == 2
    out, error = capsys.readouterr()
    assert error.splitlines()[-1].startswith("error: ") and str(output.parent) in error
    assert not out.strip()


class FailingDisk:
    """A full disk for the files below ``root`` whose names end with ``ends``."""

    def __init__(self, monkeypatch, root, ends):
        self.root, self.ends = str(root), ends + ".tmp"
        self.original = io.open
        monkeypatch.setattr(builtins, "open", self.open)
        monkeypatch.setattr(io, "open", self.open)

    def open(self, file, mode="r", *args, **kwargs):
        name = os.fspath(file) if not isinstance(file, int) else ""
        if set(mode) & set("wax") and name.startswith(self.root) and name.endswith(self.ends):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return self.original(file, mode, *args, **kwargs)


#: Script -> (its record, a key of its printed figures)
RESULTS = {
    "evaluate/bpd.py": ("bpd.json", "bits_per_dim"),
    "evaluate/bounds.py": ("bounds.json", "table"),
}


@pytest.mark.parametrize("script", RESULTS)
def test_figures_are_printed_if_the_disk_is_full(
    tmp_path, folder, image_folder, capsys, monkeypatch, script
):
    ends, figure = RESULTS[script]
    output = tmp_path / "output"
    FailingDisk(monkeypatch, output, ends)
    assert call(load_script(script), *flags_of(script, folder, image_folder, output)) == 2
    out, error = capsys.readouterr()
    printed = json.loads(out.strip().splitlines()[-1])
    assert figure in printed
    last = error.strip().splitlines()[-1]
    assert last.startswith("error: ") and "No space left on device" in last
