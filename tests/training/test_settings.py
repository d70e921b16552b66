"""Settings: the recipe, a recorded run and the flags, in increasing order of precedence; plans."""

import dataclasses

import pytest
from conftest import error_of
from ebm_app.training.plan import CONSTANT, complete, learning_rate
from ebm_app.training.settings import record_settings, resolve

from ebm_app.config import EBMConfig, LoopConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.flow import Flow, FlowConfig
from ebm_app.training.recipes import SIZES, level_settings, network_cost, network_settings
from ebm_app.training.timing import Costs, plan

DIGITS = load_images("digits")
#: Data of the recipe for any images
IMAGES = dataclasses.replace(DIGITS, name="images")


def test_flags_override_a_record_and_both_override_the_recipe():
    ebm, training = resolve(DIGITS, {"dropout": 0.3, "max_train_steps": 7})
    assert ebm.net.dropout == 0.3 and training.max_train_steps == 7
    assert ebm.input_frequencies == (1.0, 2.0, 4.25, 8.5, 17.0)
    assert training.augmentation == "affine" and ebm.condition_dim == 6
    settings = resolve(DIGITS, {"path": "vp", "c": 0.5, "eps": 1e-5})
    file = record_settings(*settings)
    assert resolve(DIGITS, {}, file) == settings
    other, _ = resolve(DIGITS, {"path": "linear_vp"}, file)
    assert other.path.name == "linear_vp" and other.path.c == 0.5


def test_size_replaces_the_network_of_a_record():
    assert "has its own network" in error_of(resolve, DIGITS, {"size": "base"})
    file = record_settings(*resolve(IMAGES, {"learning_rate": 1e-5}))
    larger, training = resolve(IMAGES, {"size": "base"}, file)
    assert max(larger.net.block_out_channels) == 256 and training.learning_rate == 1e-5


def test_recorded_eps_stays_until_the_dequantiser_changes():
    """The network reads a fraction of the interval of times, which eps ends."""
    chosen = {"prediction": "moments", "dequantisation": "truncated_normal", "eps": 1e-6}
    file = record_settings(*resolve(DIGITS, chosen))
    again, _ = resolve(DIGITS, {"learning_rate": 1e-4}, file)
    own, _ = resolve(DIGITS, {"dequantisation": "truncated_normal"})
    assert "--dequantisation truncated" in error_of(resolve, DIGITS, {"dequantisation": "uniform"})
    assert "decoder" in error_of(resolve, DIGITS, {"dequantisation": "decoder"})
    assert again.eps == 1e-6 < own.eps
    for name, eps in (("uniform", 1e-6), ("truncated_normal", own.eps)):
        assert resolve(DIGITS, {"dequantisation": name}, file)[0].eps == eps


@pytest.mark.parametrize(
    ("flags", "prediction", "objective"),
    [
        ({}, "levels", "ctsm_m"),
        ({"objective": "ctsm_v"}, "levels", "ctsm_v"),
        ({"prediction": "raw"}, "raw", "ctsm_v"),
        ({"stein_factor": 0.0}, "normalised", "ctsm_v"),
        ({"stein_factor": 0.0, "objective": "tsm"}, "normalised", "tsm"),
    ],
)
def test_prediction_and_objective_fit_each_other(flags, prediction, objective):
    ebm, training = resolve(DIGITS, flags)
    assert (ebm.prediction, training.objective) == (prediction, objective)


#: Steps, and the warmup, decay of the average, steps of validation and of a checkpoint
OPEN = [(4000, 100, 0.9975, 400, 200), (200, 20, 0.95, 20, 10), (1, 0, 0.0, 1, 1)]
OPEN += [(10**6, 100, 0.9999, 100_000, 50_000)]


@pytest.mark.parametrize(("steps", "warmup", "decay", "validation", "checkpointing"), OPEN)
def test_open_settings_follow_from_the_steps(steps, warmup, decay, validation, checkpointing):
    config = complete(LoopConfig(), steps)
    assert (config.max_train_steps, config.lr_warmup_steps) == (steps, warmup)
    assert config.ema_decay == pytest.approx(decay)
    assert (config.validation_steps, config.checkpointing_steps) == (validation, checkpointing)
    chosen = complete(LoopConfig(lr_warmup_steps=900, ema_decay=0.5, max_train_steps=5), steps)
    assert (chosen.lr_warmup_steps, chosen.ema_decay) == (900, 0.5)


def test_steps_and_minutes_replace_each_other():
    steps, minutes = {"max_train_steps": 7}, {"max_train_minutes": 2.0}
    for data, flags, length in (
        (IMAGES, {}, (None, 60.0)),
        (IMAGES, steps, (7, None)),
        (DIGITS, {}, (8000, None)),
        (DIGITS, minutes, (None, 2.0)),
    ):
        training = resolve(data, flags)[1]
        assert (training.max_train_steps, training.max_train_minutes) == length
    assert "Use one" in error_of(resolve, DIGITS, steps | minutes)
    # the record of a run in minutes repeats its steps
    ebm, training = resolve(DIGITS, minutes)
    file = record_settings(ebm, complete(training, 30))
    assert resolve(DIGITS, {}, file)[1] == complete(training, 30)
    assert resolve(DIGITS, {"max_train_minutes": 3.0}, file)[1].max_train_steps is None
    assert resolve(DIGITS, steps, file)[1].max_train_minutes is None


def test_recipe_of_images_fits_their_space():
    ebm, training = resolve(IMAGES, {})
    assert (ebm.prediction, ebm.dequantisation) == ("levels", "truncated_normal")
    assert training.optimizer == "muon" and ebm.net.dropout == 0
    flow = Flow(FlowConfig("images", IMAGES.image_shape, IMAGES.num_levels, "gaussian"))
    latent, _ = resolve(IMAGES, {}, flow=flow)
    assert (latent.prediction, latent.dequantisation) == ("moments", "uniform")
    assert resolve(IMAGES, {"stein_factor": 0.0})[0].prediction == "normalised"
    assert level_settings(200)["input_frequencies"][::5] == (3.125, 100.0)
    assert level_settings(2)["input_frequencies"] == (1.0,)


def test_constant_rate_warms_up_and_decays():
    settings = dict(learning_rate=1.0, lr_scheduler=CONSTANT, max_train_steps=20)
    config = LoopConfig(**settings, lr_warmup_steps=4, lr_decay_steps=5)
    rates = [learning_rate(config, step) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]


def test_network_of_every_size_fits_the_images():
    sizes = [("small", 64, 1.06), ("base", 64, 36), ("large", 64, 121), ("base", 28, 25.8)]
    for size, side, millions in sizes:
        net = UNetConfig(**network_settings(SIZES[size], (3, side, side)))
        cost = network_cost(EBMConfig("mine", (3, side, side), 256, net=net))
        assert cost["weights"] == pytest.approx(1e6 * millions, rel=0.1)


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
