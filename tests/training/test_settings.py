"""Settings: recipes, recorded runs, the settings of a user that replace theirs, schedules."""

import dataclasses
import json
from pathlib import Path

import pytest
from conftest import config_of, error_of

from ebm_app.data.datasets import load_images
from ebm_app.pretrained import BUNDLED
from ebm_app.training.build import make_config
from ebm_app.training.recipes import (
    IMAGES,
    recipe,
)
from ebm_app.training.schedule import learning_rate
from ebm_app.training.settings import (
    LENGTH,
    Train,
    TrainEnergy,
    as_default,
    read_settings,
    resumed,
    with_settings,
)

DATA = load_images("digits")


def test_settings_replace_those_of_the_recipe():
    base = recipe("digits", DATA.image_shape, DATA.num_levels)
    run = with_settings(base, {"dropout": 0.3, "max_train_steps": 7})
    assert run == dataclasses.replace(base, dropout=0.3, max_train_steps=7)
    ebm = make_config(run, DATA)
    assert ebm.net.dropout == 0.3 and ebm.condition_dim == 6
    assert ebm.input_frequencies == (1.0, 2.0, 4.25, 8.5, 17.0)
    assert "droput" in error_of(with_settings, base, {"droput": 0.3})
    assert "dropout" in error_of(with_settings, base, {"dropout": 1.5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dequantisation": "uniform"}, "dequantisation"),
        ({"prediction": "raw"}, "divergence"),
        ({"stein_factor": 0.0}, "Stein head"),
        ({"objective": "tsm"}, "stein_factor"),
        ({"objective": "ctsm_m"}, "ctsm_v"),
        ({"space": "copula"}, "flow"),
    ],
)
def test_incompatible_settings_are_refused(settings, message):
    assert message in error_of(config_of, DATA, **settings)


def test_recorded_run_gives_the_defaults_of_a_resume():
    base = recipe("images", (1, 28, 28), 256)
    recorded = dataclasses.replace(base, mixed_precision="bf16", seed=3)
    default = as_default(dataclasses.replace(recorded, overwrite_output_dir=True, device="cpu"))
    assert default == recorded  # without the start and the device of the recorded run
    again = with_settings(default, {"mixed_precision": "auto", "lr_warmup_steps": None})
    assert resumed(recorded, again) == recorded
    for length in ({"max_train_minutes": 2.0}, {"max_train_steps": 7}):
        new = with_settings(default, {**length, "output_dir": "other", "device": "cpu"})
        run = resumed(recorded, new)
        assert (run.max_train_steps, run.max_train_minutes) == tuple(map(length.get, LENGTH))
        assert run.output_dir == Path("other") and run.device == "cpu" and run.seed == 3


def test_steps_and_minutes_replace_each_other():
    steps, minutes = {"max_train_steps": 7}, {"max_train_minutes": 2.0}
    for base, settings, length in (
        (IMAGES, {}, (None, 60.0)),
        (IMAGES, steps, (7, None)),
        (TrainEnergy(), {}, (4500, None)),
        (TrainEnergy(), minutes, (None, 2.0)),
    ):
        run = with_settings(base, settings)
        assert (run.max_train_steps, run.max_train_minutes) == length
    assert "Use one" in error_of(with_settings, IMAGES, steps | minutes)


def test_learning_rate_follows_its_schedule():
    config = Train(learning_rate=1.0, max_train_steps=20, lr_warmup_steps=4, lr_decay_steps=5)
    rates = [learning_rate(config, step, step / 20) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    config = Train(learning_rate=1.0, lr_scheduler="cosine", lr_warmup_steps=0, max_train_steps=4)
    rates = [learning_rate(config, step, step / 4) for step in range(5)]
    assert rates == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466, 0.0])


def test_json_files_of_settings_are_read(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"optimizer": "adam", "num_nodes": 16, "block_out_channels": [8]}))
    run = with_settings(Train(), read_settings(path))
    assert run == Train(optimizer="adam", num_nodes=16, block_out_channels=(8,))
    for settings, name in (({"droput": 0.1}, "droput"), ({"num_nodes": 1}, "num_nodes")):
        path.write_text(json.dumps(settings))
        assert name in error_of(with_settings, Train(), read_settings(path))
    path.write_text('{"settings": {"sampler": "dpm"}}')
    assert "training run" in error_of(read_settings, path)


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*/run.json")), ids=lambda x: x.parent.name)
def test_records_of_bundled_models_are_valid_settings(path):
    kind = TrainEnergy if path.parent.name.endswith("energy") else Train
    run = with_settings(kind(), read_settings(path))
    assert [getattr(run, name) for name in LENGTH].count(None) == 1
