"""The costs that are reported: of whole training steps, and of integrals at equal error."""

import json

import pytest
import torch
from conftest import GREY, call
from exact import generator, two_modes

from ebm_app.image_models.ebm import EBM
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath

BATCH = 3


@pytest.fixture
def speed(script):
    return script("evaluate/speed.py")


def test_objectives_are_timed_on_the_same_network(speed):
    trainers = [speed.trainer_of(EBM(GREY), BATCH, name) for name in speed.OBJECTIVES]
    sizes = {sum(p.numel() for p in trainer.parameters) for trainer in trainers}
    assert len(sizes) == 1 and not trainers[0].task.model.config.stein_head
    with_head = speed.trainer_of(EBM(GREY), BATCH, "ctsm_m", stein_head=True)
    assert sum(p.numel() for p in with_head.parameters) > sizes.pop()
    for trainer in (*trainers, with_head):
        before = [p.clone() for p in trainer.parameters]
        for trainer.now.step in range(2):  # the first has no learning rate yet
            trainer.train_step()
        pairs = zip(trainer.parameters, before, strict=True)
        assert any(not torch.equal(now, then) for now, then in pairs)


def test_integrals_get_better_with_more_evaluations(speed, monkeypatch):
    energy = TimeScoreEnergy(two_modes(LinearVPPath(), 1e-5, (1, 2, 2)))
    x = torch.randn((4, 1, 2, 2), generator=generator(), dtype=torch.float64)
    monkeypatch.setattr(speed, "NODES", (6, 12, 24))
    monkeypatch.setattr(speed, "TOLERANCES", (1e-2, 1e-5))
    rows = speed.integrations(energy, x)
    rules, solves = rows[:3], rows[3:]
    assert [rule["evaluations"] for rule in rules] == [6, 12, 24]
    for ways in (rules, solves):
        errors = [way["error"] for way in ways]
        costs = [way["evaluations"] for way in ways]
        assert errors == sorted(errors, reverse=True) and costs == sorted(costs)
    assert 0 < rules[-1]["error"] < 1e-4 and solves[0]["by"] == "rk45 at 0.01"


def test_the_script_writes_tables(speed, tmp_path, capsys, monkeypatch):
    model, out = tmp_path / "model", tmp_path / "out"
    EBM(GREY).save_pretrained(model)
    given = [model, "--quick", "--device", "cpu", "--output_dir", out]
    rows = [{"by": "8 nodes", "evaluations": 8, "error": 1e-2}]
    monkeypatch.setattr(speed, "integrations", lambda *_: rows)
    assert call(speed, *given) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((out / "speed.json").read_text())["figures"] == found
    steps = [row["step"] for row in found["ratios"]["training"]]
    assert steps[:3] == ["ctsm_v", "ctsm", "tsm"]
    assert found["ratios"]["training"][2]["of tsm"] == 1
    assert found["ratios"]["likelihood"] == rows
    assert call(speed, *given, "--parts", "luck") == 2
    assert "unknown part 'luck': choose one of likelihood" in capsys.readouterr().err
