"""The diagnostics tab: the card of a model and its self-test."""

import json
import re

import pytest
from conftest import GREY, error_of

from ebm_app.ebm import EBM
from ebm_app.evaluation.selftest import Check
from ebm_app.utils.fields import to_dict
from ebm_app.web import diagnostics
from ebm_app.web.models import Models

LINES = [
    {"step": 10, "loss": 2.0, "learning_rate": 1e-3, "core_seconds": 70.0},
    {"step": 20, "loss": 1.5, "core_seconds": 140.0},
    {"step": 20, "validation_loss": 1.6, "validation_bits_per_dim": 3.0, "validation_stderr": 0.1},
]
RECORD = {"started": "2025-01-01T00:00:00Z", "versions": {"torch": "2.11"}, "settings": {}}


@pytest.fixture
def run(tmp_path):
    """The models of a run with records and a checkpoint."""
    ebm = EBM(GREY)
    folders = {"run": tmp_path / "run", "run/checkpoint-20": tmp_path / "run" / "checkpoint-20"}
    for folder in folders.values():
        ebm.save_pretrained(folder)
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    (tmp_path / "run" / "run.json").write_text(json.dumps({**RECORD, "figures": None}))
    return Models(folders)


def test_a_card_says_what_the_files_say(run, tmp_path):
    facts, curves, readme, config = diagnostics.card(run, "run")
    num_weights = sum(tensor.numel() for tensor in EBM(GREY).state_dict().values())
    for part in (
        "| model | run |\n| --- | --- |\n| data | digits |",
        "| images | 8 × 8 pixels, grey, 17 levels |",
        f"| weights | {num_weights:,} |",
        "| steps | the run continues, or was stopped |",
    ):
        assert part in facts
    assert {**to_dict(GREY), "kind": "energy model"} == config
    assert readme == diagnostics.NO_README and curves is not None
    settings = {"init_from": {"model": str(tmp_path), "steps": 17000, "training_seconds": 99}}
    figures = {"steps": 8000, "core_seconds": 1234.5, "bits_per_dim": 1.65}
    record = {**RECORD, "settings": settings, "figures": figures}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    (tmp_path / "run" / "README.md").write_text("![samples](grid.png)\n\nTrained on digits.")
    checks = [Check(name, name == "a", 0.1, 0.01, 0.05, "") for name in "ab"]
    figures = {"checks": [check._asdict() for check in checks], "num_images": 32}
    (tmp_path / "run" / "selftest.json").write_text(json.dumps({"figures": figures}))
    facts, curves, readme, config = diagnostics.card(run, "run")
    assert "| self-test | 1 of 2 checks passed, failed: b, on 32 held-out images |" in facts
    assert "| 8,000 in 1,234 core seconds, after 17,000 of another run in 99 " in facts
    record["settings"] = {"init_from": {"model": str(tmp_path)}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    assert "| 8,000 in 1,234 core seconds |" in diagnostics.card(run, "run")[0]
    assert "| validation | 1.6500 bits per dim |" in facts
    assert readme == "Trained on digits." and str(tmp_path) not in facts + readme
    assert curves.axes[1].get_xlabel() == "core seconds"
    assert curves.axes[1].lines[0].get_xdata().tolist() == [140]


def test_a_checkpoint_has_the_curves_of_its_run(run, models):
    assert diagnostics.card(run, "run/checkpoint-20")[1] is not None
    facts, curves, *_ = diagnostics.card(models, "colour")
    assert curves is None and "4 × 8 pixels, RGB, 256 levels" in facts


def test_nothing_tells_of_the_servers_folders_or_brings_html_and_pictures(run, tmp_path):
    (tmp_path / "run" / "model.safetensors").write_bytes(b"no weights")
    message = error_of(diagnostics.card, run, "run")
    assert message.startswith("run/model.safetensors is ")
    assert "unknown model" in error_of(diagnostics.card, run, "../run")
    text = "---\nlicense: mit\n---\n# A\n<script>x</script> ![p](a.png) ![q][1] [link](b)\n"
    assert diagnostics.shown_readme(text) == "# A\n&lt;script>x&lt;/script>   [link](b)\n"


@pytest.mark.process
def test_the_self_test_reports_as_it_goes_and_ends_with_its_checks(models, monkeypatch):
    for name, value in (("NUM_TIMES", 5), ("PF_ODE_STEPS", 2)):
        monkeypatch.setattr(diagnostics, name, value)
    reports = list(diagnostics.self_test("grey", 8, models=models, seed=3))
    heads = [text.split(" · ")[0] for _, text in reports]
    assert heads[:-1] == [f"Step {step} of 7" for step in range(8)]
    assert re.match(r"\d of [23] checks passed", heads[-1])
    assert " · grey · 8 held-out images · seed 3" in reports[-1][1]
    message = error_of(lambda: list(diagnostics.self_test("colour", 8, models=models, seed=3)))
    assert str(models.folder("colour").parent) not in message
