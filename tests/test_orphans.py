"""What ends when a launcher is killed: real processes, real signals."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import ROOT, TINY

from ebm_app.io.records import read_json


@pytest.mark.process
@pytest.mark.parametrize("num", [1, 2])
def test_processes_whose_launcher_was_killed_save_and_end_within_ten_seconds(
    tmp_path, image_folder, num
):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", str(num), ROOT / "train" / "ebm.py", *TINY]
    command += ["--dataset", f"folder:{image_folder}", "--output_dir", folder]
    command += ["--max_train_steps", "1000000", "--checkpointing_steps", "1000000"]
    command += ["--validation_steps", "1000000", "--expect_processes", str(num)]
    with open(tmp_path / "log", "w") as log:
        launcher = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    lines = folder / "metrics.jsonl"
    for _ in range(600):
        if lines.exists() and lines.stat().st_size > 500:
            break
        time.sleep(0.2)
    workers = psutil.Process(launcher.pid).children(recursive=True)
    assert len(workers) >= num
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    for process in alive:
        process.kill()
    assert not alive
    (saved,) = folder.glob("checkpoint-*")
    assert read_json(saved / "state" / "trainer.json")["step"] > 0
