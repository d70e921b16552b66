"""A kind of thing is chosen by its name in a dict, beside the classes that it holds."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened

T = TypeVar("T")


def choose(kind: str, name: str, options: Iterable[str]) -> str:
    """Return ``name`` if it is one of ``options``.

    Raises:
        UserError: otherwise; the message lists the valid names.
    """
    names = sorted(options)
    if name not in names:
        raise UserError(
            f"unknown {kind} '{shortened(name)}': {nearest(name, names)}choose one of "
            f"{', '.join(names)}"
        )
    return name


def nearest(name: str, options: Iterable[str]) -> str:
    """What may have been meant by a name that is none of ``options``: a clause, or nothing.

    >>> nearest("digts", ["digits", "mnist"])
    "did you mean 'digits'? "
    """
    found = get_close_matches(name, list(options), n=1, cutoff=0.7)
    return f"did you mean '{found[0]}'? " if found else ""


def described(kinds: Mapping[str, Any]) -> str:
    """The names of a dict of kinds for a help text, each with the ``note`` of its class, or with
    the kind itself where that is a text.

    >>> class Even:
    ...     note = "spread evenly"
    >>> described({"even": Even, "odd": object, "all": "everything"})
    'even (spread evenly), odd, all (everything)'
    """
    notes = {
        name: kind if isinstance(kind, str) else getattr(kind, "note", "")
        for name, kind in kinds.items()
    }
    return ", ".join(f"{name} ({note})" if note else name for name, note in notes.items())


def make(kinds: dict[str, type[T]], what: str, name: str | T, settings: dict[str, Any]) -> T:
    """One of ``kinds`` by name with its settings, of which None leaves the default; an object that
    is none of the names is returned as it is.

    Raises:
        UserError: for an unknown name or setting.
    """
    if not isinstance(name, str):
        return name
    choose(what, name, kinds)
    given = {key: value for key, value in settings.items() if value is not None}
    check_settings(kinds[name], f"{what} '{name}'", given)
    return kinds[name](**given)


def check_settings(
    kind: Callable[..., Any], what: str, settings: Iterable[str], fixed: Iterable[str] = ()
) -> None:
    """Raise a UserError for settings that a kind of thing does not have, naming those it has; what
    is ``fixed`` is none.

    >>> check_settings(lambda low=0, high=1: None, "a range", ["low"])
    """
    known = sorted(set(inspect.signature(kind).parameters) - set(fixed))
    for name in settings:
        if name not in known:
            has = f"choose from {', '.join(known)}" if known else "it has none"
            raise UserError(f"{what} has no setting '{shortened(name)}': {has}")
