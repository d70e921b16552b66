"""Diagnostics tab: facts about a model."""

import html
import json
import re

import pytest
from conftest import GREY

from ebm_app.ebm import EBM
from ebm_app.utils.fields import to_dict
from ebm_app.web import diagnostics
from ebm_app.web.models import Models

LINES = [
    {"step": 20, "loss": 1.5},
    {"step": 20, "validation_loss": 1.6, "validation_bits_per_dim": 3.0, "validation_stderr": 0.1},
]
RECORD = {"started": "2025-01-01T00:00:00Z", "settings": {}}


@pytest.fixture
def run(tmp_path):
    """Models of a run with records and a checkpoint."""
    ebm = EBM(GREY)
    folders = {"run": tmp_path / "run", "run/checkpoint-20": tmp_path / "run" / "checkpoint-20"}
    for folder in folders.values():
        ebm.save_pretrained(folder)
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    (tmp_path / "run" / "run.json").write_text(json.dumps({**RECORD, "figures": None}))
    return Models(folders)


def test_model_card_shows_config_and_training(run, tmp_path):
    facts, curves, config = diagnostics.model_card(run, "run")
    num_weights = sum(tensor.numel() for tensor in EBM(GREY).state_dict().values())
    for part in (
        "| model | run |\n| --- | --- |\n| data | digits |",
        "| images | 8 × 8 pixels, grey, 17 levels |",
        f"| weights | {num_weights:,} |",
        "| steps | training is not finished |",
    ):
        assert part in facts
    assert {**to_dict(GREY), "kind": "energy model"} == config
    figures = {"steps": 8000, "core_seconds": 1234.5, "bits_per_dim": 1.65}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**RECORD, "figures": figures}))
    checks = [{"name": name, "passed": name == "a"} for name in "ab"]
    figures = {"checks": checks, "num_images": 32}
    (tmp_path / "run" / "selftest.json").write_text(json.dumps({"figures": figures}))
    facts, curves, config = diagnostics.model_card(run, "run")
    assert "| self-test | 1 of 2 checks passed, failed: b, on 32 held-out images |" in facts
    assert "| steps | 8,000 in 1,234 core seconds |" in facts
    assert "| validation | 1.6500 bits per dim |" in facts
    assert curves.axes[1].lines[0].get_xdata().tolist() == [20]


def test_checkpoint_shows_the_curves_of_its_run(run, models):
    assert diagnostics.model_card(run, "run/checkpoint-20")[1] is not None
    facts, curves, _ = diagnostics.model_card(models, "colour")
    assert curves is None and "4 × 8 pixels, RGB, 256 levels" in facts


@pytest.mark.parametrize(
    "value",
    [
        "![image](http://evil.example/a.png)",
        "<img src=//evil.example/a.png>",
        "www.evil.example",
        "a | b",
    ],
)
def test_recorded_values_are_shown_as_text(run, tmp_path, value):
    record = {"started": value, "settings": {}, "figures": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    facts, *_ = diagnostics.model_card(run, "run")
    (line,) = [line for line in facts.splitlines() if line.startswith("| trained |")]
    shown = line.removeprefix("| trained | ").removesuffix(" |")
    assert not re.search(r"[<>\[\]()!|/@]|www\.", shown)
    assert html.unescape(shown) == " ".join(value.split())
