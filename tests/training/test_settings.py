"""Settings: the recipe, a recorded run and the flags, in increasing order of precedence; plans."""

import dataclasses

import pytest
from conftest import error_of

from ebm_app.config import EBMConfig, LoopConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.flow import Flow, FlowConfig
from ebm_app.training.plan import CONSTANT, complete, learning_rate
from ebm_app.training.recipes import SIZES, level_settings, network_cost, network_settings
from ebm_app.training.settings import record_settings, resolve


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def test_flags_override_the_recipe(digits):
    ebm, training = resolve(digits, {"dropout": 0.3, "max_train_steps": 7})
    assert ebm.net.dropout == 0.3 and training.max_train_steps == 7
    assert ebm.input_frequencies == (1.0, 2.0, 4.25, 8.5, 17.0)
    assert training.augmentation == "affine" and ebm.condition_dim == 6


def test_flags_override_a_recorded_run(digits):
    settings = resolve(digits, {"path": "vp", "c": 0.5, "eps": 1e-5})
    file = record_settings(*settings)
    assert resolve(digits, {}, file) == settings
    other, _ = resolve(digits, {"path": "linear_vp"}, file)
    assert other.path.name == "linear_vp" and other.path.c == 0.5
    assert "network of its" in error_of(resolve, digits, {"size": "base"})
    images = dataclasses.replace(digits, name="images")
    file = record_settings(*resolve(images, {"learning_rate": 1e-5}))
    larger, training = resolve(images, {"size": "base"}, file)
    assert max(larger.net.block_out_channels) == 256 and training.learning_rate == 1e-5


def test_recorded_eps_stays_until_the_dequantiser_changes(digits):
    """The network reads a fraction of the interval of times, which eps ends."""
    chosen = {"dequantisation": "truncated_normal", "eps": 1e-6}
    file = record_settings(*resolve(digits, chosen))
    again, _ = resolve(digits, {"learning_rate": 1e-4}, file)
    own, _ = resolve(digits, {"dequantisation": "truncated_normal"})
    assert again.eps == 1e-6 < own.eps
    for name, eps in (("uniform", 1e-6), ("truncated_normal", own.eps)):
        assert resolve(digits, {"dequantisation": name}, file)[0].eps == eps


def test_old_names_are_accepted(digits):
    ebm, training = resolve(digits, {"weighting": "time_score"})
    assert (ebm.time_input, training.weighting) == ("arc_length", "inverse_variance")


@pytest.mark.parametrize(
    ("flags", "prediction", "objective"),
    [
        ({}, "moments", "ctsm_m"),
        ({"objective": "ctsm_v"}, "moments", "ctsm_v"),
        ({"prediction": "raw"}, "raw", "ctsm_v"),
        ({"stein_factor": 0.0}, "normalised", "ctsm_v"),
        ({"stein_factor": 0.0, "objective": "tsm"}, "normalised", "tsm"),
        ({"objective": "dual"}, "energy", "dual"),
    ],
)
def test_prediction_and_objective_fit_each_other(digits, flags, prediction, objective):
    ebm, training = resolve(digits, flags)
    assert (ebm.prediction, training.objective) == (prediction, objective)


def test_settings_left_open_follow_from_the_steps():
    for steps, warmup, decay, validation, checkpointing in (
        (4000, 100, 0.9975, 400, 200),
        (200, 20, 0.95, 20, 10),
        (1, 0, 0.0, 1, 1),
        (10**6, 100, 0.9999, 100_000, 50_000),
    ):
        config = complete(LoopConfig(), steps)
        assert (config.max_train_steps, config.lr_warmup_steps) == (steps, warmup)
        assert config.ema_decay == pytest.approx(decay)
        assert config.validation_steps == validation
        assert config.checkpointing_steps == checkpointing
    chosen = LoopConfig(lr_warmup_steps=900, ema_decay=0.5)
    assert complete(chosen, 20) == complete(dataclasses.replace(chosen, max_train_steps=5), 20)
    assert complete(chosen, 20).lr_warmup_steps == 900 and complete(chosen, 20).ema_decay == 0.5


def test_steps_and_minutes_replace_each_other(digits):
    images = dataclasses.replace(digits, name="images")
    steps, minutes = {"max_train_steps": 7}, {"max_train_minutes": 2.0}
    for data, flags, length in (
        (images, {}, (None, 60.0)),
        (images, steps, (7, None)),
        (digits, {}, (8000, None)),
        (digits, minutes, (None, 2.0)),
    ):
        training = resolve(data, flags)[1]
        assert (training.max_train_steps, training.max_train_minutes) == length
    assert "Use only one" in error_of(resolve, digits, steps | minutes)
    # the record of a run in minutes repeats its steps
    ebm, training = resolve(digits, minutes)
    file = record_settings(ebm, complete(training, 30))
    assert resolve(digits, {}, file)[1] == complete(training, 30)
    assert resolve(digits, {"max_train_minutes": 3.0}, file)[1].max_train_steps is None
    assert resolve(digits, steps, file)[1].max_train_minutes is None


def test_recipe_of_images_fits_their_space(digits):
    images = dataclasses.replace(digits, name="images")
    ebm, training = resolve(images, {})
    assert (ebm.prediction, ebm.dequantisation) == ("levels", "truncated_normal")
    assert training.optimizer == "muon" and ebm.net.dropout == 0
    flow = Flow(FlowConfig("images", images.image_shape, images.num_levels, "gaussian"))
    latent, _ = resolve(images, {}, flow=flow)
    assert (latent.prediction, latent.dequantisation) == ("moments", "uniform")
    assert resolve(images, {"stein_factor": 0.0})[0].prediction == "normalised"


def test_constant_rate_warms_up_and_decays():
    settings = dict(learning_rate=1.0, lr_scheduler=CONSTANT, max_train_steps=20)
    config = LoopConfig(**settings, lr_warmup_steps=4, lr_decay_steps=5)
    rates = [learning_rate(config, step) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    open_ended = LoopConfig(**settings, lr_warmup_steps=0, lr_decay_steps=0)
    assert learning_rate(open_ended, 0) == learning_rate(open_ended, 20) == 1.0


def test_lowest_frequency_is_at_least_two():
    assert level_settings(200)["input_frequencies"][::5] == (3.125, 100.0)
    assert level_settings(2)["input_frequencies"] == (1.0,)


@pytest.mark.parametrize(
    ("size", "side", "millions"),
    [("small", 64, 1.06), ("base", 64, 36), ("large", 64, 121), ("base", 28, 25.8)],
)
def test_network_of_every_size_fits_the_images(size, side, millions):
    net = UNetConfig(**network_settings(SIZES[size], (3, side, side)))
    cost = network_cost(EBMConfig("mine", (3, side, side), 256, net=net))
    assert cost["weights"] == pytest.approx(1e6 * millions, rel=0.1)
