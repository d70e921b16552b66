"""The commands of ``ebm``, and what a user's own module adds to them."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from conftest import GREY, save_picture

from ebm_app import EBM
from ebm_app.cli.__main__ import COMMANDS, main
from ebm_app.paths import PATHS
from ebm_app.utils.errors import user_message
from ebm_app.utils.registry import import_extension, import_plugins

MODULE = """
from ebm_app.paths import PATHS, LinearVPPath

class Mine(LinearVPPath):
    pass

PATHS["mine"] = Mine
"""


def ebm(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["ebm", *map(str, words)])
    return main()


def test_every_command_is_named_and_another_is_refused(monkeypatch, capsys):
    assert ebm(monkeypatch) == 0 and ebm(monkeypatch, "fly") == 2
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)


def test_every_image_of_a_folder_gets_a_row(monkeypatch, capsys, tmp_path):
    """In its own place, whatever the batches, and its bits are those of its log probability."""
    numbers = np.random.RandomState(0)
    for index in range(3):
        save_picture(tmp_path / f"{index}.png", numbers.randint(0, 256, (16, 8, 3)))
    (tmp_path / "bad.png").write_text("no image")
    score = ["score", "digits", tmp_path, "--estimator", "ratio", "--device", "cpu"]
    assert ebm(monkeypatch, *score) == 2
    assert "bad.png' as an image" in capsys.readouterr().err
    tables = []
    for size in (1, 4):
        output = tmp_path / f"{size}.csv"
        given = ["--skip_bad", "--repeats", 2, "--batch_size", size, "--output", output]
        assert ebm(monkeypatch, *score, *given) == 0
        figures = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (figures["images"], figures["bad"]) == (3, 1)
        tables.append(list(csv.DictReader(output.open())))
    assert [row["file"] for row in tables[1]] == ["0.png", "1.png", "2.png"]
    for one, row in zip(*tables, strict=True):
        log_prob, bits = float(row["log_prob"]), float(row["bits_per_dim"])
        assert bits == pytest.approx(-log_prob / (64 * np.log(2)), rel=1e-6)
        assert float(row["stderr"]) > 0
        assert float(one["bits_per_dim"]) == pytest.approx(bits, rel=1e-5)


def test_a_module_of_the_users_own_adds_to_every_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_paths.py").write_text(MODULE)
    sample = ["sample", tmp_path / "model", "--num_images", 1, "--num_steps", 2, "--device", "cpu"]
    try:
        import_extension("my_paths")
        made = EBM(type(GREY)(**{**vars(GREY), "path": type(GREY.path)("mine")}))
        torch.nn.init.normal_(made.model.net.unet.conv_out.weight, std=0.1)
        made.save_pretrained(tmp_path / "model")
        del PATHS["mine"], sys.modules["my_paths"]
        assert ebm(monkeypatch, *sample) == 2
        assert "unknown path 'mine'" in capsys.readouterr().err
        assert ebm(monkeypatch, *sample, "--import", "my_paths") == 0
        del PATHS["mine"], sys.modules["my_paths"]
        (tmp_path / "mine-1.dist-info").mkdir()
        (tmp_path / "mine-1.dist-info/entry_points.txt").write_text("[ebm_app]\nmine = my_paths")
        import_plugins.cache_clear()
        assert EBM.from_pretrained(tmp_path / "model").config == made.config
    finally:
        PATHS.pop("mine", None)
    assert ebm(monkeypatch, *sample, "--import", "no_such_module") == 2
    assert "no module named no_such_module" in capsys.readouterr().err
    for name in ("", ".", "os."):
        assert ebm(monkeypatch, *sample, "--import", name) == 2
        assert "expects the name of a module" in capsys.readouterr().err


def test_a_package_that_is_not_installed_is_named():
    text = user_message(ModuleNotFoundError("no", name="gradio.components"))
    assert "pip install 'ebm_app[ui]'" in text
    assert user_message(ModuleNotFoundError("no", name="other")) is None
