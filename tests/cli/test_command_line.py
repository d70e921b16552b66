"""Flags and settings KEY=VALUE: types, ranges, mistakes, and the defaults of every script."""

import dataclasses
from importlib import import_module
from typing import Annotated, Literal

import pytest
from annotated_types import Len
from conftest import ROOT, error_of

from ebm_app.cli.__main__ import COMMANDS
from ebm_app.cli.command_line import Positional, argument, explicit, parse
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.sampling import SAMPLERS
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import (
    Positive,
    PositiveInt,
    advanced,
    configuration,
    from_strings,
    setting,
)
from ebm_app.utils.registry import settings_of_each

#: Texts that a user may type in place of a number
TEXTS = ["-1", "0", "1", "1.5", "nan", "-inf", "1e400", "1e308", "x", "", "9" * 5000, "2147483648"]
MODULES = [f"ebm_app.cli.{name}" for name in COMMANDS.values()]
MODULES += [path.stem for path in ROOT.glob("evaluate/*.py") if "Arguments" in path.read_text()]
#: Settings classes, by name
KINDS = {kind.__name__: kind for kind in (SAMPLERS | ESTIMATORS | DEQUANTISERS).values()}
KINDS |= {name: import_module(name).Arguments for name in MODULES}


@configuration(kw_only=True)
class Walk:
    place: Positional[str] = argument("place")
    num_steps: PositiveInt = setting("number of steps", 3)
    pace: Positive | None = advanced("metres per second", None)
    sizes: Annotated[tuple[PositiveInt, ...], Len(1, 3)] = setting("shoe sizes", (7,))
    mood: Literal["good", "bad"] = setting("mood", "good")
    fast: bool = setting("run instead", False)
    hidden: int = 0


@configuration
class Run:
    num_steps: PositiveInt = 1
    pace: float = 1.0


def test_flags_become_the_types_of_the_fields():
    words = "here --num_steps=4 --pace 2 --sizes 1 2 --mood bad --fast".split()
    args = parse(Walk, "A walk.", words)
    assert args == Walk(place="here", num_steps=4, pace=2.0, sizes=(1, 2), mood="bad", fast=True)
    assert explicit(args, words, Run) == {"num_steps": 4, "pace": 2.0}
    assert "sizes" in error_of(parse, Walk, "A walk.", "here --sizes 1 2 3 4".split())


def test_help_shows_defaults_and_hides_advanced_flags(capsys):
    for word, is_shown in (("--help", False), ("--help_advanced", True)):
        with pytest.raises(SystemExit) as stop:
            parse(Walk, "A walk.", [word])
        printed = capsys.readouterr().out
        assert stop.value.code == 0 and "default: 3" in printed
        assert ("metres per second" in printed) == is_shown


MISTAKES = ["", "here there", "here --steps 3", "here --num_steps few", "here --hidden 1"]


@pytest.mark.parametrize("words", MISTAKES)
def test_unknown_word_exits_with_code_2(capsys, words):
    with pytest.raises(SystemExit) as stop:
        parse(Walk, "A walk.", words.split())
    assert stop.value.code == 2 and capsys.readouterr().err


def test_settings_go_to_every_kind_that_has_them():
    pairs = ["pace=2e-1", "place=a=b", "num_steps=3"]
    settings = settings_of_each({"run": Run, "walk": Walk}, pairs)
    assert settings["run"] == {"pace": 0.2, "num_steps": 3}
    assert settings["walk"] == {"pace": 0.2, "num_steps": 3, "place": "a=b"}
    for pair in ("steps=3", "num_steps=few", "num_steps=0", "num_steps"):
        assert "num_steps" in error_of(settings_of_each, {"run": Run}, [pair])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_text_is_a_number_or_one_sentence(kind):
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
