"""Runs whose length is set in minutes: their plan, their resume, and their repetition."""

import shutil

import pytest
from conftest import error_of
from runs import SMALL, equal_tensors, random_images, weights_of, without_speeds

from ebm_app import train
from ebm_app.config import LoopConfig
from ebm_app.training import timing
from ebm_app.training.metrics import read_metrics
from ebm_app.training.timing import Costs, measure, plan
from ebm_app.utils.files import read_json

MINUTES = {**SMALL, "num_levels": 17, "max_train_minutes": 2.0}
LATEST = {"resume_from_checkpoint": "latest"}
IMAGES = random_images(20, 4)


#: Settings, costs and planned validation images
PLANS = [({}, Costs(0.5, 1.0, 0.1), 290), ({"validation_steps": 7}, Costs(0.5, 1.0, 0.1), 290)]
PLANS += [({}, Costs(0.5, 5.0, 20.0), 2), ({}, Costs(0.01, 0.0, 0.0), 1000)]


@pytest.mark.parametrize(("settings", "costs", "num_images"), PLANS)
def test_planned_run_takes_the_time(settings, costs, num_images):
    config = plan(LoopConfig(**settings), costs, 600.0, 500.0)
    assert config.validation_images == num_images
    steps, period = config.max_train_steps, config.validation_steps
    count = steps // period + (steps % period > 0)
    seconds = steps * costs.step + count * (costs.validation + num_images * costs.image)
    assert seconds == pytest.approx(500, rel=0.02)
    assert 1 <= count and (settings or count <= 10)
    assert settings.items() <= vars(config).items()


@pytest.mark.process
def test_run_in_minutes_keeps_its_plan(tmp_path, monkeypatch):
    """On a resume, and if its record is repeated by the number of steps. Steps are measured, then
    planned as if each took 5 seconds."""

    def measured(trainer, budget):
        assert 0 < measure(trainer, 0.0).step < budget
        return Costs(5.0, 0.5, 0.01)

    monkeypatch.setattr(timing, "measure", measured)
    whole, part, again = (tmp_path / name for name in ("whole", "part", "again"))
    train(IMAGES, whole, **MINUTES)
    planned = read_json(whole / "run.json")["settings"]["training"]
    steps = planned["max_train_steps"]
    assert planned["max_train_minutes"] == 2 and 1 < steps < 24
    shutil.copytree(whole, part)
    shutil.rmtree(part / f"checkpoint-{steps}")
    train(IMAGES, part, **MINUTES, **LATEST)
    assert read_json(part / "run.json")["settings"]["training"] == planned
    repeated = {key: value for key, value in planned.items() if key != "compile"}
    train(IMAGES, again, **{**MINUTES, **repeated, "max_train_minutes": None})
    rows = [without_speeds(read_metrics(run / "metrics.jsonl")) for run in (whole, part, again)]
    assert rows[0] == rows[1] == rows[2]
    assert all(equal_tensors(weights_of(run), weights_of(whole)) for run in (part, again))
    other = {**MINUTES, **LATEST, "max_train_minutes": 9.0}
    assert "max_train_minutes" in error_of(train, IMAGES, whole, **other)
