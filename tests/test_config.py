"""Configurations: strict keys, checked types, and keys of older versions."""

from dataclasses import replace

import pytest
from conftest import error_of

from ebm_app.config import Calibration, EBMConfig, PathConfig
from ebm_app.folders import upgrade
from ebm_app.nets.unet import UNetConfig
from ebm_app.utils.fields import from_dict, to_dict

NET = UNetConfig((8, 16), attention_levels=(1,))
EXAMPLE = EBMConfig("digits", (1, 8, 8), 17, path=PathConfig("vp", 0.5), net=NET)
WRONG = [
    ({"net": {"width": 3}}, "example: unknown key net.width"),
    ({"num_levels": True}, "num_levels must be a valid integer"),
    ({"image_shape": [1, "8", 8]}, "image_shape.1 must be a valid integer, got '8'"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_keys_and_types_are_strict(change, message):
    assert message in error_of(from_dict, EBMConfig, {**to_dict(EXAMPLE), **change}, "example")


def test_older_files_are_upgraded():
    older = {**to_dict(EXAMPLE), "palette": [], "space_arguments": {}, "time_input": "clock"}
    older["path"] = {**older["path"], "arguments": {}}
    older["residual"] = {"mean": 0.5, "stderr": 0.1, "spread": 1.0}
    del older["calibration"]
    expected = replace(EXAMPLE, calibration=Calibration(0.5, 0.1, 1.0))
    assert from_dict(EBMConfig, upgrade(older), "older") == expected
