"""Settings: the recipe, a recorded run and the flags, in increasing order of precedence; plans."""

import dataclasses

import pytest
from conftest import error_of

from ebm_app.config import EBMConfig, LoopConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.training.plan import CONSTANT, Schedule
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
    for recorded in (file, None):
        assert "network of its" in error_of(resolve, digits, {"size": "base"}, recorded)


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
    ebm, training = resolve(digits, {"weighting": "time_score", "time_input": "clock"})
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


def test_warmup_is_at_most_a_tenth_of_a_short_run(digits):
    other = dataclasses.replace(digits, name="images")
    for num_steps, warmup in ((100_000, 1000), (4000, 400), (200, 100)):
        assert resolve(other, {"max_train_steps": num_steps})[1].lr_warmup_steps == warmup
    explicit = {"max_train_steps": 4000, "lr_warmup_steps": 900}
    assert resolve(other, explicit)[1].lr_warmup_steps == 900


def test_constant_rate_warms_up_and_decays():
    settings = dict(learning_rate=1.0, lr_scheduler=CONSTANT, max_train_steps=20)
    schedule = Schedule(LoopConfig(**settings, lr_warmup_steps=4, lr_decay_steps=5))
    rates = [schedule.learning_rate(step) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    open_ended = Schedule(LoopConfig(**settings, lr_warmup_steps=0, lr_decay_steps=0))
    assert open_ended.learning_rate(0) == open_ended.learning_rate(20) == 1.0


def test_lowest_frequency_is_at_least_two():
    assert level_settings(200)["input_frequencies"][::5] == (3.125, 100.0)
    assert level_settings(2)["input_frequencies"] == (1.0,)


@pytest.mark.parametrize(
    ("size", "side", "millions"),
    [("small", 64, 1.5), ("base", 64, 36), ("large", 64, 121), ("base", 28, 25.8)],
)
def test_network_of_every_size_fits_the_images(size, side, millions):
    net = UNetConfig(**network_settings(SIZES[size], (3, side, side)))
    cost = network_cost(EBMConfig("mine", (3, side, side), 256, net=net))
    assert cost["weights"] == pytest.approx(1e6 * millions, rel=0.1)
