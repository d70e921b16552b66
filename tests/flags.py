"""Every script and the flags that it declares."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt
from conftest import ROOT, load_script

#: the scripts with a command line, by their paths
SCRIPTS = [
    str(path.relative_to(ROOT))
    for folder in ("train", "sample", "evaluate", "ui")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "parse(Arguments" in path.read_text(encoding="utf-8")
]


def arguments_of(path: str) -> type:
    """The configuration that a script's flags make."""
    return load_script(path).Arguments


def required(kind: type) -> dict[str, str]:
    """Something for every field that must be given."""
    absent = dataclasses.MISSING
    return {
        item.name: "digits"
        for item in dataclasses.fields(kind)
        if item.default is absent and item.default_factory is absent
    }


def numbers_of(kind: type) -> Iterator[tuple[str, type, list[Any], bool]]:
    """The numbers among the fields of a dataclass: name, int or float, their bounds, and whether
    there are several."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        for single, several in leaves(hint):
            is_bounded = typing.get_origin(single) is Annotated
            plain, *found = typing.get_args(single) if is_bounded else [single]
            if plain in (int, float):
                yield name, plain, found, several


def leaves(hint: Any, several: bool = False) -> Iterator[tuple[Any, bool]]:
    """The types of single values inside a type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and typing.get_origin(parts[0]) is None:
        yield hint, several
    elif origin in (Annotated, tuple, list, typing.Union) or type(hint).__name__ == "UnionType":
        inner = parts[:1] if origin is Annotated else parts
        for part in inner:
            yield from leaves(part, several or origin in (tuple, list))
    else:
        yield hint, several


def is_within(value: float, bounds: list[Any]) -> bool:
    """Whether a number lies in a range."""
    checks = {
        Ge: lambda bound: value >= bound.ge,
        Gt: lambda bound: value > bound.gt,
        Le: lambda bound: value <= bound.le,
        Lt: lambda bound: value < bound.lt,
    }
    return all(checks[type(bound)](bound) for bound in bounds)
