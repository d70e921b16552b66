"""Configurations: strict keys, checked types, a round trip through JSON."""

import pytest

from ebm_app.io.errors import UserError
from ebm_app.io.records import from_dict, read_json, to_dict, write_json
from ebm_app.models.config import EBMConfig, PathConfig, TrainingConfig
from ebm_app.models.unet import UNetConfig

EXAMPLE = EBMConfig(
    "digits",
    (1, 8, 8),
    17,
    path=PathConfig("vp", 0.5),
    net=UNetConfig((8, 16), attention_levels=(1,)),
    input_frequencies=(8.5, 17.0),
)


def test_round_trip_through_a_file(tmp_path):
    write_json(tmp_path / "config.json", to_dict(EXAMPLE))
    assert from_dict(EBMConfig, read_json(tmp_path / "config.json"), "config") == EXAMPLE
    assert from_dict(TrainingConfig, to_dict(TrainingConfig()), "training") == TrainingConfig()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "example: unknown key colour"),
        ({"net": {"width": 3}}, "example: unknown key net.width"),
        ({"eps": "small"}, "example: eps must be a valid number, not 'small'"),
        ({"num_levels": 17.5}, "num_levels must be a valid integer"),
        ({"num_levels": True}, "num_levels must be a valid integer"),
        ({"stein_head": 1}, "stein_head must be a valid boolean"),
        ({"image_shape": [1, "8", 8]}, "image_shape.1 must be a valid integer, not '8'"),
        ({"path": "vp"}, "example: path must be an object, not 'vp'"),
        ({"space_arguments": {"bins": 3}}, "space_arguments .* at most 0 items"),
    ],
)
def test_keys_and_types_are_strict(change, message):
    with pytest.raises(UserError, match=message):
        from_dict(EBMConfig, {**to_dict(EXAMPLE), **change}, "example")
