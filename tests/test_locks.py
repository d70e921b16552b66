"""One writer at a time in a folder, in real processes."""

import multiprocessing
import os
import signal
import time

import pytest
from conftest import call, load_script

from ebm_app.io.errors import UserError
from ebm_app.io.output import Output


def keep(path, ready) -> None:
    output = Output(path, {})
    ready.set()
    time.sleep(60)
    output.save({})


def test_a_second_holder_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    path, ready = tmp_path / "new" / "run.json", context.Event()
    process = context.Process(target=keep, args=(path, ready))
    process.start()
    assert ready.wait(20)
    with pytest.raises(UserError, match="is being written by another process: wait for it"):
        Output(path, {})
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    output = Output(path, {})
    with pytest.raises(UserError, match="by another process"):
        Output(path, {})
    assert Output(path.with_name("other.json"), {})
    del output
    assert not path.with_name("run.json.lock").exists()


@pytest.mark.parametrize("name", ["train/ebm.py", "train/flow.py", "evaluate/bpd.py"])
def test_scripts_keep_others_out_of_their_folders(tmp_path, folder, image_folder, capsys, name):
    flags = ["--dataset", f"folder:{image_folder}", "--device", "cpu"]
    if name == "evaluate/bpd.py":
        flags = [folder / "grey", "--limit", "2", "--repeats", "1"]
    record = tmp_path / ("bpd.json" if name == "evaluate/bpd.py" else "run.json")
    held = Output(record, {})
    assert call(load_script(name), *flags, "--output_dir", tmp_path) == 2
    assert "is being written by another process" in capsys.readouterr().err
    assert held and not record.exists()
