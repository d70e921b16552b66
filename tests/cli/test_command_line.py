"""Flags of every script and settings key=value: odd values, typos, and ranges stated once."""

import dataclasses
import re
from typing import Annotated, Literal

import pytest
from annotated_types import Len
from conftest import error_of
from flags import SCRIPTS, arguments_of, required

from ebm_app.cli.command_line import (
    Positional,
    Repeated,
    argument,
    explicit,
    parse,
)
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.sampling.samplers import SAMPLERS
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import (
    Positive,
    PositiveInt,
    Share,
    advanced,
    configuration,
    from_attributes,
    from_strings,
    setting,
)
from ebm_app.utils.registry import settings_of_each

ODD = "-1 0 1 2 1.5 -0.5 nan inf -inf 1e400 1e-400 1e308 x 0x10 None true".split()
ODD += ["", " ", "9" * 30, "9" * 5000, "2147483648"]
KINDS = {
    kind.__name__: kind
    for kinds in (SAMPLERS, ESTIMATORS, DEQUANTISERS)
    for kind in kinds.values()
}


@configuration(kw_only=True)
class Walk:
    """A walk."""

    place: Positional[str] = argument("where")
    num_steps: PositiveInt = setting("how many", 3)
    pace: Positive | None = advanced("how fast", None)
    sizes: Annotated[tuple[PositiveInt, ...], Len(1, 3)] = setting("of the shoes", (7,))
    mood: Literal["good", "bad"] = setting("of the walker", "good")
    name: Repeated[tuple[str, ...]] = setting("of the walkers", ())
    fast: bool = setting("whether to run", False)
    hidden: int = 0


def test_words_become_the_types_of_the_fields():
    words = "here --num_steps 4 --pace 2 --sizes 1 2 --mood bad --fast --name a --name c"
    found = parse(Walk, "A walk.", words.split())
    assert found == Walk(
        place="here", num_steps=4, pace=2.0, sizes=(1, 2), mood="bad", fast=True, name=("a", "c")
    )
    assert parse(Walk, None, ["here"]) == Walk(place="here")
    words = ["--num_steps=3", "--mood", "bad", "here"]
    written = explicit(parse(Walk, None, words), words, Run)
    assert written == {"num_steps": 3}


@pytest.mark.parametrize(
    "words", ["", "here there", "here --steps 3", "here --num_steps few", "here --hidden 1"]
)
def test_a_mistake_of_a_word_ends_with_code_2(capsys, words):
    with pytest.raises(SystemExit) as stop:
        parse(Walk, "A walk.", words.split())
    assert stop.value.code == 2 and capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num_steps 0", "num_steps must be greater than or equal to 1, got 0"),
        ("--pace 0", "pace must be greater than 0, got 0.0"),
        ("--pace nan", "pace must be a finite number"),
        ("--sizes 1 2 3 4", "sizes "),
    ],
)
def test_a_value_out_of_its_range_ends_in_a_sentence(words, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parse(Walk, "A walk.", ["here", *words.split()])


@configuration
class Rest:
    pace: Share = 0.0
    place: str = "here"


@configuration
class Run:
    num_steps: PositiveInt = 1
    pace: float = 1.0
    fast: bool = False


def test_settings_go_to_every_kind_that_has_them():
    pairs = ["pace=2e-1", "place=a=b", "num_steps=3", "fast=true"]
    assert settings_of_each({"run": Run, "rest": Rest}, pairs) == {
        "run": {"pace": 0.2, "num_steps": 3, "fast": True},
        "rest": {"pace": 0.2, "place": "a=b"},
    }
    assert from_attributes(Rest, Run(pace=0.5), place="there") == Rest(pace=0.5, place="there")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("steps=3", "unknown setting of Rest, Run 'steps': choose one of fast, num_steps"),
        ("num_steps=few", "num_steps must be a valid integer"),
        ("num_steps=0", "num_steps must be greater than or equal to 1"),
        ("num_steps", "num_steps must be a valid integer"),
    ],
)
def test_a_mistake_in_settings_is_named(pair, message):
    assert message in error_of(settings_of_each, {"Rest": Rest, "Run": Run}, [pair])


@pytest.mark.parametrize("name", [*SCRIPTS, *KINDS])
def test_an_odd_value_of_a_number_is_taken_or_ends_in_a_sentence(name):
    kind = arguments_of(name) if name in SCRIPTS else KINDS[name]
    for item in dataclasses.fields(kind):
        for text in ODD if type(item.default) in (int, float) else ():
            try:
                made = from_strings(kind, {**required(kind), item.name: text})
            except UserError as error:
                message = str(error)
                assert item.name in message and "\n" not in message and len(message) < 250
            else:
                assert abs(getattr(made, item.name)) <= 1e30


def test_the_defaults_of_scripts_lie_in_their_ranges():
    for path in SCRIPTS:
        kind = arguments_of(path)
        kind(**required(kind))
