"""Settings classes, configurations of models, and registries that build them by name."""

import numpy as np
import pytest
import torch
from conftest import error_of
from pydantic import ValidationError

from ebm_app.utils.fields import (
    Positive,
    PositiveInt,
    configuration,
    from_dict,
    from_strings,
)
from ebm_app.utils.registry import make


class Walk:
    """Base class of the registry."""


@configuration
class Hike(Walk):
    num_steps: PositiveInt = 3
    pace: Positive = 1.0


KINDS = {"hike": Hike}


@pytest.mark.parametrize("settings", [{"num_steps": 0}, {"pace": float("nan")}, {"colour": 1}])
def test_invalid_settings_are_one_line(settings):
    (name,) = settings
    with pytest.raises(ValidationError):
        Hike(**settings)
    assert name in error_of(make, KINDS, Walk, "walk", "hike", settings)
    assert name in error_of(from_dict, Hike, settings, "file")
    assert name in error_of(from_strings, Hike, {name: str(settings[name])})


def test_make_builds_by_name_and_keeps_instances():
    made = make(KINDS, Walk, "walk", "hike", {"num_steps": np.int64(4), "pace": torch.tensor(0.5)})
    assert made == Hike(4, 0.5) and type(made.num_steps) is int and type(made.pace) is float
    assert from_strings(Hike, {"num_steps": "4", "pace": "0.5"}) == made
    assert make(KINDS, Walk, "walk", made, {}) is made
    assert make(KINDS, Walk, "walk", "hike", {"num_steps": None}) == Hike()
    assert "got '4'" in error_of(make, KINDS, Walk, "walk", "hike", {"num_steps": "4"})
    for wrong in (3, Hike, None):
        assert "walk" in error_of(make, KINDS, Walk, "walk", wrong, {})
    assert "hike" in error_of(make, KINDS, Walk, "walk", "run", {})
