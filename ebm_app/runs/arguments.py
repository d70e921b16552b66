"""Settings on a command line: words ``key=value`` in the types of a dataclass's fields."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ebm_app.errors import UserError

#: what a field of a type takes, in words
EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}


def settings_of(kind: type, pairs: Sequence[str]) -> dict[str, Any]:
    """The settings that ``pairs`` give to the dataclass ``kind``.

    >>> from ebm_app.sampling.samplers import PFODESampler
    >>> settings_of(PFODESampler, ["num_steps=12", "solver=rk4"])
    {'num_steps': 12, 'solver': 'rk4'}

    Raises:
        UserError: for a word that is not key=value, a setting that ``kind`` does not have or that
            is given twice, and a value of the wrong type.
    """
    return settings_of_each({kind.__name__: kind}, pairs)[kind.__name__]


def settings_of_each(kinds: Mapping[str, type], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings of several dataclasses by name; each pair goes to all that have such a field.

    Raises:
        UserError: as ``settings_of``, and for a setting that none of them has.
    """
    texts = _split(pairs)
    fields = {name: _fields(kind) for name, kind in kinds.items()}
    if unknown := [key for key in texts if not any(key in own for own in fields.values())]:
        there = "; ".join(f"{name} has {', '.join(own) or 'none'}" for name, own in fields.items())
        raise UserError(f"there is no setting '{unknown[0]}': {there}")
    return {
        name: {key: _convert(own[key], text, key) for key, text in texts.items() if key in own}
        for name, own in fields.items()
    }


def _split(pairs: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if not (key and text) or key in texts:
            raise UserError(f"write every setting once, as key=value, not '{pair}'")
        texts[key] = text
    return texts


def _fields(kind: type) -> dict[str, type]:
    """The type of every setting, the other one of those that may be None."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: _without_none(hints[field.name])
        for field in dataclasses.fields(kind)
        if field.init
    }


def _without_none(hint: Any) -> type:
    if not isinstance(hint, types.UnionType):
        return hint
    return next(option for option in typing.get_args(hint) if option is not types.NoneType)


def _convert(kind: type, text: str, key: str) -> Any:
    try:
        return {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UserError(f"{key} must be {EXPECTED[kind]}, not '{text}'") from None
