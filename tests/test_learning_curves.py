"""The bound of runs against their core seconds."""

import json

import pytest
from conftest import call, error_of, load_script

TOOL = "tools/learning_curves.py"


def write(path, *bounds, key="validation_bits_per_dim"):
    rows = [{"step": 5, "loss": 1.0}]
    rows += [{"step": 10 * (n + 1), "validation_loss": 1.0, key: b} for n, b in enumerate(bounds)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_curve_goes_on_with_the_next_run(tmp_path):
    first = write(tmp_path / "first.jsonl", 2.0, 1.5, key="validation_elbo_bits_per_dim")
    second = write(tmp_path / "second.jsonl", 1.25)
    curve = load_script(TOOL).read_curve(["Adam", "0.5", first, second])
    assert curve.core_seconds == [5.0, 10.0, 15.0] and curve.bound == [2.0, 1.5, 1.25]


def test_curves_are_drawn(tmp_path, script, capsys):
    words = ["Muon", "2", write(tmp_path / "metrics.jsonl", 1.5, 1.0)]
    picture = tmp_path / "curves.png"
    assert call(script(TOOL), "--curve", *words, "--output", picture) == 0
    assert json.loads(capsys.readouterr().out) == {"Muon": 1.0} and picture.stat().st_size > 1000


@pytest.mark.parametrize("words", [["Muon"], ["Muon", "fast"], ["Muon", "1"]])
def test_a_curve_without_numbers_is_refused(words):
    assert "curve" in error_of(load_script(TOOL).read_curve, words)
