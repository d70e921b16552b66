"""Every flag of every script, found by asking their parsers."""

import argparse
import math
import typing
from collections.abc import Iterator
from typing import Annotated, Any
from unittest.mock import patch

from annotated_types import Ge, Gt, Le, Lt
from conftest import ROOT, load_script

from ebm_app.io.cli import Parser, plain

FOLDERS = ("train", "sample", "evaluate", "ui", "tools")
#: the scripts with a command line, by their paths
SCRIPTS = [
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in sorted((ROOT / folder).glob("*.py"))
    if "Parser(" in path.read_text(encoding="utf-8")
]


class Found(Exception):
    """A script has made its parser."""


def parser_of(path: str) -> Parser:
    """The parser of a script."""

    def stop(self: Parser, argv: Any = None) -> None:
        raise Found(self)

    with patch.object(Parser, "parse_args", stop):
        try:
            load_script(path).main([])
        except Found as found:
            return found.args[0]
    raise AssertionError(f"{path} parses no flags")


def words(parser: Parser) -> list[str]:
    """Something for every argument that must be given."""
    required = [
        f"{action.option_strings[0]}=digits"
        for action in parser._actions
        if action.required and action.option_strings
    ]
    return ["digits"] * len(parser._get_positional_actions()) + required


def flags_of(parser: Parser) -> Iterator[argparse.Action]:
    """The flags that take a value."""
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            yield action


def hint_of(action: argparse.Action) -> Any:
    """The type of a flag with its range; None where it takes any text."""
    return getattr(action.type, "hint", action.type)


def is_numeric(hint: Any) -> bool:
    """Whether values of this type are numbers."""
    return plain(hint) in (int, float)


def bounds(hint: Any) -> tuple[Any, ...]:
    """The range of a type."""
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()


def is_within(value: Any, hint: Any) -> bool:
    """Whether a number has the type and lies in its range."""
    checks = {
        Ge: lambda bound: value >= bound.ge,
        Gt: lambda bound: value > bound.gt,
        Le: lambda bound: value <= bound.le,
        Lt: lambda bound: value < bound.lt,
    }
    is_inside = all(checks[type(bound)](bound) for bound in bounds(hint))
    return type(value) is plain(hint) and math.isfinite(value) and is_inside
