"""Long runs keep their memory."""

import psutil
import pytest
from conftest import TINY, load_script

from ebm_app.training.trainer import Trainer

MB = 2**20


@pytest.mark.slow
def test_memory_is_flat_over_2000_steps(tmp_path, image_folder, monkeypatch):
    seen, step = {}, Trainer.train_step

    def watched(trainer: Trainer) -> None:
        step(trainer)
        if trainer.step in (500, 1999):
            seen[trainer.step] = psutil.Process().memory_info().rss / MB

    monkeypatch.setattr(Trainer, "train_step", watched)
    flags = ["--dataset", f"folder:{image_folder}", "--output_dir", str(tmp_path / "run"), *TINY]
    flags += ["--max_train_steps", "2000", "--validation_steps", "100"]
    load_script("train/ebm.py").main([*flags, "--checkpointing_steps", "100"])
    assert seen[1999] - seen[500] < 20, seen


@pytest.mark.slow
def test_memory_is_flat_over_1000_requests(client):
    seen = {}
    for number in range(1, 1001):
        client.predict("grey", "pf_ode", 2, 2, number, False, False, api_name="/generate")
        if number in (200, 1000):
            seen[number] = psutil.Process().memory_info().rss / MB
    assert seen[1000] - seen[200] < 50, seen
