"""Reading and writing files: atomic, never blocking, and one line for each mistake."""

import os
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from conftest import error_of
from matplotlib.figure import Figure

from ebm_app.cli.command_line import run_script
from ebm_app.data.pictures import save_image
from ebm_app.ratios.rows import read_rows
from ebm_app.training.metrics import read_metrics
from ebm_app.utils.errors import UserError, user_message
from ebm_app.utils.files import read_json, read_tensors, save_figure, write_json, write_tensors

WRITE = {
    "record": lambda path: write_json(path, {}),
    "tensors": lambda path: write_tensors(path, {"x": torch.zeros(2)}),
    "picture": lambda path: save_image(torch.zeros(2, 2, 1).byte().numpy(), path),
    "figure": lambda path: save_figure(Figure(), path),
}
KINDS = ("folder", "fifo", "device", "broken", "circle", "socket", "nothing")
READ = {"record": read_json, "tensors": read_tensors, "lines": read_metrics, "rows": read_rows}


def put_irregular(path, kind):
    """Create an entry of one of ``KINDS`` at ``path``; the paths of sockets must be short."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    elif kind != "nothing":
        targets = {"device": "/dev/zero", "broken": "nowhere", "circle": path.name}
        path.symlink_to(targets[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_irregular_file_is_replaced_or_refused(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    for name, write in WRITE.items():
        path = tmp_path / name
        put_irregular(path, kind)
        try:
            write(path)
            assert stat.S_ISREG(path.lstat().st_mode)
        except (UserError, OSError) as error:
            assert str(tmp_path) in (user_message(error) or str(error))
    assert not (tmp_path / "nowhere").exists(), "a link was followed"
    for name, read in READ.items():
        path = tmp_path / ("read " + name)
        put_irregular(path, kind)
        if name != "lines" or path.exists():
            error_of(read, path)


def test_readers_see_the_old_file_until_the_new_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_json(path, {"step": 1})
    seen, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(read_json(path)), sync(file)))
    write_json(path, {"step": 2})
    assert seen[0] == {"step": 1} and read_json(path) == {"step": 2}


def test_concurrent_writers_keep_the_file_intact(tmp_path):
    path, data = tmp_path / "bpd.json", {"values": [1] * 1000}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_json(path, data), range(200)))
    assert os.listdir(tmp_path) == ["bpd.json"] and read_json(path) == data


@pytest.fixture
def read_only_folder():
    """A folder that the process may read but not write; tests may run as root."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kept").write_text("{}")
        (folder / "kept").chmod(0)
        folder.chmod(0o555)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(65_534)
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_missing_permission_is_one_line(read_only_folder):
    for write in WRITE.values():
        for name in ("new", "kept"):
            with pytest.raises(OSError) as refused:
                write(read_only_folder / name)
            assert str(read_only_folder) in user_message(refused.value)
    for read in READ.values():
        error_of(read, read_only_folder / "kept")


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


LOST = {"closed": lambda: None, "full": lambda: open("/dev/full", "w"), "pipe": closed_pipe}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_run_survives_a_lost_terminal(monkeypatch, capsys, lost):
    done = []

    def main(argv):
        for _ in range(1_000):
            print("a line of many words")
            print("a bar", file=sys.stderr, flush=True)
        done.append(True)
        return {"figure": 1}

    for name, code in (("stderr", 0), ("stdout", 2)):
        with monkeypatch.context() as patch:
            stream = lost()
            patch.setattr(sys, name, stream)
            assert run_script(main) == code
            if stream is not None:
                stream.close()
    assert len(done) == 2 and "in the record" in capsys.readouterr().err
