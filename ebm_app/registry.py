"""A kind of thing is chosen by its name in a dict, beside the classes that it holds."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from ebm_app.errors import UserError
from ebm_app.fields import shortened

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
    try:
        return kinds[name](**given)
    except TypeError as error:
        raise UserError(f"{what} '{name}': {error}") from None
