"""Odd numbers and typos for every flag of every script, and every setting key=value."""

import dataclasses
import math
import typing

import pytest
from conftest import ROOT, error_of
from flags import SCRIPTS, bounds, flags_of, hint_of, is_numeric, is_within, parser_of, words

from ebm_app.io.arguments import _fields, settings_of
from ebm_app.io.cli import limits, plain
from ebm_app.io.errors import UserError
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.models.config import EBMConfig, TrainingConfig
from ebm_app.models.unet import UNetConfig
from ebm_app.sampling.samplers import SAMPLERS

ODD = "-1 0 1 2 1.5 -0.5 nan inf -inf 1e400 1e-400 1e308 x 0x10 None true".split()
ODD += ["", " ", "9" * 30, "9" * 5000, "2147483648"]
KINDS = {
    kind.__name__: kind
    for kinds in (SAMPLERS, ESTIMATORS, DEQUANTISERS)
    for kind in (*kinds.values(), EBMConfig, TrainingConfig, UNetConfig)
}


@pytest.fixture(scope="module")
def parsers():
    """The parser of every script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        yield {path: parser_of(path) for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_number_has_a_range_and_an_odd_one_ends_in_a_sentence(parsers, path):
    parser = parsers[path]
    for action in flags_of(parser):
        hint, name = hint_of(action), action.option_strings[0]
        is_counted = isinstance(action.default, int | float) and action.default is not False
        assert not is_counted or is_numeric(hint), f"{name} takes texts, but is a number"
        if not is_numeric(hint):
            continue
        assert limits(hint, shown=math.inf), f"{name} has no range: use a type of io.fields"
        assert limits(hint) in " ".join(parser.format_help().split())
        for text in ODD:
            try:
                args = parser.parse_args([*words(parser), f"{name}={text}"])
            except UserError as error:
                message = str(error)
                assert name in message and "\n" not in message and len(message) < 250
            else:
                value = getattr(args, action.dest)
                for number in value if isinstance(value, list) else [value]:
                    assert is_within(number, hint), f"{name} took {text} for {number}"


@pytest.mark.parametrize("name", KINDS)
def test_a_setting_has_a_range_and_an_odd_one_ends_in_a_sentence(name):
    for key, hint in _fields(KINDS[name]).items():
        single = plain(hint)
        if typing.get_origin(single) is tuple:
            hint = typing.get_args(single)[0]
        if not is_numeric(hint):
            continue
        assert bounds(hint), f"{key} has no range: use a type of io.fields"
        for text in ODD:
            try:
                value = settings_of(KINDS[name], [f"{key}={text}"])[key]
            except UserError as error:
                assert key in str(error) and "\n" not in str(error) and len(str(error)) < 250
            else:
                for number in value if isinstance(value, tuple) else [value]:
                    assert is_within(number, hint), f"{key} took {text} for {number}"


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_typo_names_the_nearest_flag_or_value(parsers, path):
    parser = parsers[path]
    for action in flags_of(parser):
        name = action.option_strings[0]
        if len(name) > 6:
            typo = name[:3] + name[4:]
            assert "did you mean '--" in error_of(parser.parse_args, [*words(parser), typo, "1"])
        for choice in action.choices or ():
            if len(choice) > 3:
                typo = [*words(parser), f"{name}={choice[:1]}{choice[2:]}"]
                message = error_of(parser.parse_args, typo)
                assert "did you mean '" in message and choice in message


def test_defaults_lie_in_their_ranges(parsers):
    for path, parser in parsers.items():
        for action in flags_of(parser):
            values = action.default if isinstance(action.default, list) else [action.default]
            for value in values:
                if isinstance(value, int | float) and is_numeric(hint_of(action)):
                    assert is_within(value, hint_of(action)), f"{path} {action.dest}"
    for kind in KINDS.values():
        hints = _fields(kind)
        for field in dataclasses.fields(kind):
            hint, value = hints.get(field.name), field.default
            if bounds(hint) and isinstance(value, int | float):
                assert is_within(value, hint), f"{kind.__name__}.{field.name}"
