"""The diagnostics tab: the card of a model and its self-test."""

import json
import re

import pytest
from conftest import GREY, error_of

from ebm_app.evaluation.selftest import Check
from ebm_app.image_models.ebm import EBM
from ebm_app.io.records import to_dict
from ebm_app.web import diagnostics
from ebm_app.web.models import Models

LINES = [
    {"step": 10, "loss": 2.0, "learning_rate": 1e-3},
    {"step": 20, "loss": 1.5},
    {"step": 20, "validation_loss": 1.6, "validation_bits_per_dim": 3.0, "validation_stderr": 0.1},
]
RECORD = {"started": "2025-01-01T00:00:00Z", "versions": {"torch": "2.11"}, "settings": {}}
GOOD = Check("quadrature", "32 against 128 nodes", True, 0.001, 0.0, 0.005)
BAD = Check("mean time score", "summed over the clock", False, -0.5, 0.1, 0.1)
SKIPPED = Check("E[p_1/p_0]", "ESS 1.0 of 100")


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
    found = diagnostics.card(run, "run")
    num_weights = sum(tensor.numel() for tensor in EBM(GREY).state_dict().values())
    for part in (
        "| model | run |\n| --- | --- |\n| data | digits |",
        "| images | 8 × 8 pixels, grey, 17 levels |",
        f"| weights | {num_weights:,} |",
        "| steps | the run continues, or was stopped |",
    ):
        assert part in found.facts
    assert {**to_dict(GREY), "kind": "energy model"} == found.config
    assert found.readme == diagnostics.NO_README and found.curves is not None
    settings = {"init_from": {"model": str(tmp_path), "steps": 17000}}
    figures = {"steps": 8000, "bits_per_dim": 1.65, "output_dir": str(tmp_path)}
    record = {**RECORD, "settings": settings, "figures": figures}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    (tmp_path / "run" / "README.md").write_text("![samples](grid.png)\n\nTrained on digits.")
    found = diagnostics.card(run, "run")
    assert "| steps | 8,000, after 17,000 of another run |" in found.facts
    assert "| validation | 1.6500 bits per dim |" in found.facts
    assert found.readme == "Trained on digits." and str(tmp_path) not in str(found)
    assert found.curves.axes[1].get_xlabel() == "step"
    figures["core_seconds"], settings["init_from"]["training_seconds"] = 1234.5, 99
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    lines = [{**line, "core_seconds": 7.0 * line["step"]} for line in LINES[:2]]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, LINES[2]])
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    found = diagnostics.card(run, "run")
    assert "| 8,000 in 1,234 core seconds, after 17,000 of another run in 99 " in found.facts
    assert found.curves.axes[1].get_xlabel() == "core seconds"
    assert found.curves.axes[1].lines[0].get_xdata().tolist() == [140]


def test_a_checkpoint_has_the_curves_of_its_run(run, models):
    assert diagnostics.card(run, "run/checkpoint-20").curves is not None
    found = diagnostics.card(models, "colour")
    assert found.curves is None and "4 × 8 pixels, RGB, 256 levels" in found.facts


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
    total = 5 + 3
    assert heads[:2] == [f"Step 0 of {total}", f"Step 1 of {total}, time 1 of 5"]
    assert heads[-2].startswith(f"Step {total} of {total}, pf_ode") and len(heads) == total + 2
    assert re.match(r"\d of [23] checks passed", heads[-1])
    assert " · grey · 8 held-out images · seed 3" in reports[-1][1]
    message = error_of(lambda: list(diagnostics.self_test("colour", 8, models=models, seed=3)))
    assert str(models.folder("colour").parent) not in message


def test_a_record_in_the_folder_of_a_model_is_shown_and_a_failed_one_is_a_line(tmp_path):
    assert diagnostics.recorded(tmp_path, "run") == ("", (None, ""))
    time_score = {"shares": [0.3, 0.7], "mean": [0.1, -0.2], "stderr": [0.1, 0.1]}
    for outcomes, head in (([GOOD, SKIPPED], "1 of 1"), ([GOOD, BAD, SKIPPED], "1 of 2")):
        figures = {"checks": list(map(Check.as_record, outcomes)), "mean_time_score": time_score}
        record = {"started": "2025-01-01T00:00:00Z", "figures": figures}
        (tmp_path / "selftest.json").write_text(json.dumps(record))
        line, (figure, text) = diagnostics.recorded(tmp_path, "run")
        assert ("run failed 1 of the checks" in line) == bool(line) == (BAD in outcomes)
        assert text.startswith(f"{head} checks passed")
        assert text.splitlines()[1:] == [check.describe() for check in outcomes]
        (points,) = figure.axes[0].containers
        assert points.lines[0].get_ydata() == pytest.approx([0.1, -0.2])
    (tmp_path / "selftest.json").write_text("{")
    line, (figure, text) = diagnostics.recorded(tmp_path, "run")
    assert "run/selftest.json" in line and "run/selftest.json" in text and figure is None
    assert str(tmp_path) not in line + text
