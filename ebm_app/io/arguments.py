"""Settings on a command line: words ``key=value`` in the types of a dataclass's fields."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ebm_app.io.cli import NOUNS, parsed, plain
from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.io.registry import nearest


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
        UserError: as ``settings_of``, and for a setting that none of them has or reads.
    """
    texts = _split(pairs)
    fields = {name: _fields(kind) for name, kind in kinds.items()}
    known = {key for own in fields.values() for key in own}
    if unknown := [key for key in texts if key not in known]:
        there = "; ".join(f"{name} has {', '.join(own) or 'none'}" for name, own in fields.items())
        meant = nearest(unknown[0], known)
        raise UserError(f"there is no setting '{shortened(unknown[0])}': {meant}{there}")
    given = {
        name: {key: _convert(own[key], text, key) for key, text in texts.items() if key in own}
        for name, own in fields.items()
    }
    unread = {name: _unread(kinds[name], own) for name, own in given.items()}
    for key in texts:
        reasons = [unread[name].get(key) for name, own in given.items() if key in own]
        if all(reasons):
            raise UserError(f"{key} is not read with {reasons[0]}: leave it out")
    return given


def _unread(kind: type, given: Mapping[str, Any]) -> dict[str, str]:
    """The settings that ``kind`` does not read beside those given, and which setting's doing it
    is."""
    found = {}
    for name, options in getattr(kind, "unread", {}).items():
        value = given.get(name, getattr(kind, name))
        found |= dict.fromkeys(options.get(value, ()), f"{name}={value}")
    return found


def _split(pairs: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if not (key and text) or key in texts:
            raise UserError(f"write every setting once, as key=value, not '{shortened(pair)}'")
        texts[key] = text
    return texts


def _fields(kind: type) -> dict[str, Any]:
    """The type of every setting that a text can give, the other one of those that may be None."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {
        field.name: _without_none(hints[field.name])
        for field in dataclasses.fields(kind)
        if field.init
    }
    return {name: hint for name, hint in found.items() if _of_words(hint) in NOUNS}


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    return next(option for option in typing.get_args(hint) if option is not types.NoneType)


def _of_words(hint: Any) -> Any:
    """The plain type of the words of a setting, several of which are a tuple."""
    kind = plain(hint)
    return plain(typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else kind


def _convert(hint: Any, text: str, key: str) -> Any:
    kind = plain(hint)
    try:
        if typing.get_origin(kind) is tuple:
            return tuple(parsed(typing.get_args(kind)[0], word) for word in text.split(","))
        return parsed(hint, text)
    except ValueError as error:
        raise UserError(f"{key} {error}") from None
