"""Settings as words key=value."""

import re
from dataclasses import dataclass

import pytest
from conftest import error_of

from ebm_app.io.arguments import settings_of, settings_of_each
from ebm_app.io.errors import UserError


@dataclass(frozen=True)
class Walk:
    num_steps: int = 1
    pace: float = 1.0
    name: str | None = None
    fast: bool = False


@dataclass(frozen=True)
class Rest:
    pace: float = 0.0
    place: str = "here"


def test_words_become_the_types_of_the_fields():
    pairs = ["num_steps=3", "pace=2", "name=a=b", "fast=true"]
    found = settings_of(Walk, pairs)
    assert found == {"num_steps": 3, "pace": 2.0, "name": "a=b", "fast": True}
    assert type(found["pace"]) is float and settings_of(Walk, []) == {}


def test_a_setting_goes_to_every_kind_that_has_it():
    kinds = {"walk": Walk, "rest": Rest}
    found = settings_of_each(kinds, ["pace=2e-1", "place=there"])
    assert found == {"walk": {"pace": 0.2}, "rest": {"pace": 0.2, "place": "there"}}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            ["steps=3"],
            "there is no setting 'steps': did you mean 'num_steps'? "
            "Walk has num_steps, pace, name, fast",
        ),
        (["num_steps=few"], "num_steps must be a whole number, not 'few'"),
        (["num_steps=2.5"], "num_steps must be a whole number, not '2.5'"),
        (["pace=slow"], "pace must be a number"),
        (["fast=1"], "fast must be true or false"),
        (["num_steps"], "as key=value, not 'num_steps'"),
        (["num_steps="], "as key=value, not 'num_steps='"),
        (["=3"], "as key=value, not '=3'"),
        (["num_steps=2", "num_steps=3"], "every setting once"),
    ],
)
def test_a_mistake_is_named(pairs, message):
    with pytest.raises(UserError, match=re.escape(message)):
        settings_of(Walk, pairs)


def test_a_setting_of_none_of_the_kinds_names_those_of_each():
    message = error_of(settings_of_each, {"walk": Walk, "rest": Rest}, ["speed=2"])
    assert "walk has num_steps, pace, name, fast; rest has pace, place" in message
