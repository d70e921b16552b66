"""The costs that are reported: of whole training steps, and of integrals at equal error."""

import json
from dataclasses import replace

from conftest import GREY, call

from ebm_app.ebm import EBM
from studies import speed

BATCH = 3


def test_objectives_are_timed_on_the_same_network():
    """Which has none of the labels that a model was told."""
    told = EBM(replace(GREY, num_classes=3))
    trainers = [speed.trainer_of(told, BATCH, name) for name in speed.OBJECTIVES]
    sizes = {sum(p.numel() for p in trainer.parameters) for trainer in trainers}
    assert len(sizes) == 1 and not trainers[0].task.model.config.stein_head
    with_head = speed.trainer_of(EBM(GREY), BATCH, "ctsm_m", stein_head=True)
    assert sum(p.numel() for p in with_head.parameters) > sizes.pop()


def test_the_script_writes_tables(tmp_path, capsys):
    model, out = tmp_path / "model", tmp_path / "out"
    EBM(GREY).save_pretrained(model)
    given = [model, "--quick", "--device", "cpu", "--output_dir", out]
    assert call(speed, *given) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((out / "speed.json").read_text())["figures"] == found
    steps = [row["step"] for row in found["ratios"]["training"]]
    assert steps[:3] == ["ctsm_v", "ctsm", "tsm"]
    assert found["ratios"]["training"][2]["of tsm"] == 1
    rows = found["ratios"]["likelihood"]
    rules, solves = rows[: len(speed.NODES)], rows[len(speed.NODES) :]
    assert [rule["evaluations"] for rule in rules] == list(speed.NODES)
    assert solves[0]["by"] == "rk45 at 0.001" and rules[0]["error"] > rules[-1]["error"]
    costs = [solve["evaluations"] for solve in solves]
    assert costs == sorted(costs) and solves[0]["error"] > solves[-1]["error"]
    assert call(speed, *given, "--parts", "luck") == 2
    assert "unknown part 'luck': choose one of likelihood" in capsys.readouterr().err
