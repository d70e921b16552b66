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


def card(models, name):
    """Return the rows of a model's table, and the other outputs."""
    table, *rest = diagnostics.model_card(models, name)
    return dict(re.findall("<td>(.*?)</td><td>(.*?)</td>", table)), *rest


def test_model_card_shows_config_and_training(run, tmp_path):
    facts, curves, config = card(run, "run")
    num_weights = sum(tensor.numel() for tensor in EBM(GREY).state_dict().values())
    assert facts == {
        **{"model": "run", "data": "digits", "images": "8 × 8 pixels, grey, 17 levels"},
        **{"weights": f"{num_weights:,}", "trained": RECORD["started"]},
        "steps": "training is not finished",
    }
    assert {**to_dict(GREY), "kind": "energy model"} == config
    figures = {"steps": 8000, "core_seconds": 1234.5, "bits_per_dim": 1.65}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**RECORD, "figures": figures}))
    checks = [{"name": name, "passed": name == "a"} for name in "ab"]
    figures = {"checks": checks, "num_images": 32}
    (tmp_path / "run" / "selftest.json").write_text(json.dumps({"figures": figures}))
    facts, curves, config = card(run, "run")
    assert facts["self-test"] == "1 of 2 checks passed, failed: b, on 32 held-out images"
    assert facts["steps"] == "8,000 in 1,234 core seconds"
    assert facts["validation"] == "1.6500 bits per dim"
    assert curves.axes[1].lines[0].get_xdata().tolist() == [20]


def test_checkpoint_shows_the_curves_of_its_run(run, models):
    assert card(run, "run/checkpoint-20")[1] is not None
    facts, curves, _ = card(models, "colour")
    assert curves is None and facts["images"] == "4 × 8 pixels, RGB, 256 levels"


def test_recorded_values_are_shown_as_text(run, tmp_path):
    value = "<img src=//evil.example/a.png> & 'b'"
    record = {"started": value, "settings": {}, "figures": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    shown = card(run, "run")[0]["trained"]
    assert "<" not in shown and html.unescape(shown) == value
