"""Flags of scripts, settings KEY=VALUE, and registries that build settings classes by name."""

import dataclasses
import re
from importlib import import_module
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from annotated_types import Len
from conftest import ROOT, error_of, load_script
from pydantic import ValidationError

import bpd
from ebm_app.command_line import Positional, argument, parse
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.sampling import SAMPLERS
from ebm_app.training.build import NAMES
from ebm_app.training.settings import Train, TrainEnergy
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import (
    Positive,
    PositiveInt,
    configuration,
    from_dict,
    from_strings,
    setting,
)
from ebm_app.utils.registry import make, settings_of_each
from ebm_app.web import __main__ as web

sample = load_script("sample/ebm.py")


def test_names_in_help_are_those_of_the_registries():
    kinds = (bpd.Arguments, sample.Arguments, Train)
    items = [item for kind in kinds for item in dataclasses.fields(kind)]
    texts = {item.name: item.metadata["help"] for item in items if "help" in item.metadata}
    for name in NAMES.keys() & texts.keys():
        of_users = set(NAMES[name]) - {"display", "schrodinger_bridge"}
        assert of_users <= {*re.findall(r"\w+", texts[name])}, name
    assert {*ESTIMATORS, "all"} <= {*re.findall(r"(\w+): ", texts["estimator"])}
    for name, kind in SAMPLERS.items():
        assert f"{name}: " in texts["sampler"]
        for field in dataclasses.fields(kind):
            number = f"{field.default:g}" if type(field.default) is float else field.default
            assert field.name == kind.counts or f"{field.name}={number}" in texts["sampler_args"]


#: Texts that a user may type in place of a number
TEXTS = ["-1", "0", "1", "1.5", "nan", "-inf", "1e400", "1e308", "x", "", "9" * 5000, "2147483648"]
SCRIPTS = [path for path in ROOT.glob("evaluate/*.py") if "Arguments" in path.read_text()]
#: Settings classes, by name
KINDS = {kind.__name__: kind for kind in (SAMPLERS | ESTIMATORS | DEQUANTISERS).values()}
KINDS |= {"train": Train, "energy": TrainEnergy, "flow": load_script("train/flow.py").Arguments}
KINDS |= {"sample": sample.Arguments, "ui": web.Arguments}
KINDS |= {path.stem: import_module(path.stem).Arguments for path in SCRIPTS}


@configuration(kw_only=True)
class Walk:
    place: Positional[str] = argument("place")
    num_steps: PositiveInt = setting("number of steps", 3)
    pace: Positive | None = setting("metres per second", None)
    sizes: Annotated[tuple[PositiveInt, ...], Len(1, 3)] = setting("shoe sizes", (7,))
    mood: Literal["good", "bad"] = setting("mood", "good")
    fast: bool = setting("run instead", False)
    hidden: int = 0


class Gait:
    """Base class of a registry."""


@configuration
class Run(Gait):
    num_steps: PositiveInt = 3
    pace: Positive = 1.0


GAITS = {"run": Run}


def test_flags_become_the_types_of_the_fields():
    words = "here --num_steps=4 --pace 2 --sizes 1 2 --mood bad --fast".split()
    args = parse(Walk, "A walk.", words)
    assert args == Walk(place="here", num_steps=4, pace=2.0, sizes=(1, 2), mood="bad", fast=True)
    default = Walk(place="there", num_steps=5, fast=True)
    assert parse(Walk, "A walk.", ["here"], default) == dataclasses.replace(default, place="here")
    assert not parse(Walk, "A walk.", ["here", "--no_fast"], default).fast
    assert "sizes" in error_of(parse, Walk, "A walk.", "here --sizes 1 2 3 4".split())


def test_settings_reach_every_class_with_the_field():
    pairs = ["pace=2e-1", "place=a=b", "num_steps=3"]
    settings = settings_of_each({"run": Run, "walk": Walk}, pairs)
    assert settings["run"] == {"pace": 0.2, "num_steps": 3}
    assert settings["walk"] == {"pace": 0.2, "num_steps": 3, "place": "a=b"}
    for pair in ("steps=3", "num_steps=few", "num_steps=0", "num_steps"):
        assert "num_steps" in error_of(settings_of_each, {"run": Run}, [pair])


@pytest.mark.parametrize("settings", [{"num_steps": 0}, {"pace": float("nan")}, {"colour": 1}])
def test_invalid_settings_are_one_line(settings):
    (name,) = settings
    with pytest.raises(ValidationError):
        Run(**settings)
    assert name in error_of(make, GAITS, Gait, "gait", "run", settings)
    assert name in error_of(from_dict, Run, settings, "file")
    assert name in error_of(from_strings, Run, {name: str(settings[name])})


def test_make_builds_by_name_and_keeps_instances():
    settings = {"num_steps": np.int64(4), "pace": torch.tensor(0.5)}
    made = make(GAITS, Gait, "gait", "run", settings)
    assert made == Run(4, 0.5) and type(made.num_steps) is int and type(made.pace) is float
    assert from_strings(Run, {"num_steps": "4", "pace": "0.5"}) == made
    assert make(GAITS, Gait, "gait", made, {}) is made
    assert make(GAITS, Gait, "gait", "run", {"num_steps": None}) == Run()
    assert "got '4'" in error_of(make, GAITS, Gait, "gait", "run", {"num_steps": "4"})
    for wrong in (3, Run, None):
        assert "gait" in error_of(make, GAITS, Gait, "gait", wrong, {})
    assert "run" in error_of(make, GAITS, Gait, "gait", "walk", {})


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_invalid_numbers_raise_one_line_error(kind):
    absent, items = dataclasses.MISSING, dataclasses.fields(kind)
    needed = [i for i in items if i.default is i.default_factory is absent]
    values = {i.name: ("digits",) if "tuple[" in str(i.type) else "digits" for i in needed}
    for item in items:
        for text in TEXTS if type(item.default) in (int, float) else ():
            try:
                made = from_strings(kind, {**values, item.name: text})
            except UserError as error:
                message = str(error)
                assert item.name in message and "\n" not in message and len(message) < 250
            else:
                assert abs(getattr(made, item.name)) <= 1e30
