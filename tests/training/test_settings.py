"""Settings: preset, recorded run and flags, in that order of precedence."""

import dataclasses

import pytest
import torch

from ebm_app.config import EBMConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.nets.unet import UNet
from ebm_app.training import settings
from ebm_app.training.cost import network_cost
from ebm_app.training.presets import SIZES, sized, suited_to_levels
from ebm_app.utils.errors import UserError


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def test_preset_then_flags(digits):
    ebm, training = settings.resolve(digits, {"dropout": 0.3, "max_train_steps": 7})
    assert ebm.net.dropout == 0.3 and training.max_train_steps == 7
    assert ebm.input_frequencies == (1.0, 2.0, 4.25, 8.5, 17.0)
    assert training.augmentation == "affine"
    assert ebm.image_shape == (1, 8, 8) and ebm.num_levels == 17 and ebm.condition_dim == 6


def test_a_record_comes_back_whole_but_for_what_is_given(digits):
    found = settings.resolve(digits, {"path": "vp", "c": 0.5, "eps": 1e-5})
    record = settings.record(*found)
    assert settings.resolve(digits, {}, record) == found
    other, _ = settings.resolve(digits, {"path": "linear_vp"}, record)
    assert other.path.name == "linear_vp" and other.path.c == 0.5


def test_the_margin_of_a_record_stays_where_a_dequantiser_would_give_another(digits):
    """The network reads its time as a share of the whole, which the margin ends."""
    chosen = {"dequantisation": "truncated_normal", "eps": 1e-6}
    record = settings.record(*settings.resolve(digits, chosen))
    again, _ = settings.resolve(digits, {"learning_rate": 1e-4}, record)
    own, _ = settings.resolve(digits, {"dequantisation": "truncated_normal"})
    assert again.eps == 1e-6 < own.eps
    other, _ = settings.resolve(digits, {"dequantisation": "uniform"}, record)
    assert other.eps == 1e-6
    back, _ = settings.resolve(digits, {"dequantisation": "truncated_normal"}, record)
    assert back.eps == own.eps


@pytest.mark.parametrize(
    ("given", "prediction", "objective"),
    [
        ({}, "moments", "ctsm_m"),
        ({"objective": "ctsm_v"}, "moments", "ctsm_v"),
        ({"prediction": "raw"}, "raw", "ctsm_v"),
        ({"stein_factor": 0.0}, "normalised", "ctsm_v"),
        ({"stein_factor": 0.0, "objective": "tsm"}, "normalised", "tsm"),
        ({"objective": "dual"}, "energy", "dual"),
    ],
)
def test_prediction_and_objective_go_together(digits, given, prediction, objective):
    ebm, training = settings.resolve(digits, given)
    assert (ebm.prediction, training.objective) == (prediction, objective)


def test_the_warm_up_of_a_preset_is_a_tenth_of_a_short_run_at_most(digits):
    other = dataclasses.replace(digits, name="images")
    for given, warmup in (
        ({}, 1000),
        ({"max_train_steps": 4000}, 400),
        ({"max_train_steps": 200}, 100),
        ({"max_train_steps": 4000, "lr_warmup_steps": 900}, 900),
    ):
        assert settings.resolve(other, given)[1].lr_warmup_steps == warmup


def test_frequencies_and_margin_by_the_number_of_levels():
    bins = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    assert suited_to_levels(256) == {"input_frequencies": bins, "eps": 5e-9}
    for num_levels in (2, 3, 5, 16, 17, 64, 200):
        found = suited_to_levels(num_levels)
        frequencies = found["input_frequencies"]
        assert frequencies[-1] == num_levels / 2, "a period for each bin of width 2 / L"
        assert all(2 * a == b for a, b in zip(frequencies, frequencies[1:], strict=False))
        assert 2 <= frequencies[0] < 4 or num_levels < 4
        assert num_levels * found["eps"] ** 0.5 == pytest.approx(256 * 5e-9**0.5)


@pytest.mark.parametrize("side", [28, 32, 64])
@pytest.mark.parametrize(("size", "millions"), [("small", 1.5), ("base", 36), ("large", 121)])
def test_a_network_of_every_size_fits_the_images(side, size, millions):
    """Its weights are those of the network that is built, and those of its name from 32x32 on."""
    net = UNetConfig(**sized(SIZES[size], (3, side, side)))
    cost = network_cost(EBMConfig("mine", (3, side, side), 256, net=net))
    with torch.device("meta"):
        built = UNet((3, side, side), 6, net)
    assert cost.weights == sum(weight.numel() for weight in built.parameters())
    assert side == 28 or cost.weights == pytest.approx(1e6 * millions, rel=0.1)


def test_a_size_is_for_a_preset_that_has_one(digits):
    with pytest.raises(UserError, match="network of its own"):
        settings.resolve(digits, {"size": "base"})
