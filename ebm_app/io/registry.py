"""A kind of thing is chosen by its name in a dict, beside the classes that it holds."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

from ebm_app.io.errors import UserError
from ebm_app.io.fields import checked, shortened

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
    """What may have been meant by a name that is not in ``options``: a clause, or "".

    >>> nearest("digts", ["digits", "mnist"])
    "did you mean 'digits'? "
    """
    found = get_close_matches(name, list(options), n=1, cutoff=0.7)
    return f"did you mean '{found[0]}'? " if found else ""


def make(kinds: dict[str, type[T]], what: str, name: str | T, settings: dict[str, Any]) -> T:
    """One of ``kinds`` by name with its settings, of which None leaves the default; an object that
    is not a name is returned as it is.

    Raises:
        UserError: for an unknown name or setting, or a value that a dataclass does not take.
    """
    if not isinstance(name, str):
        return name
    kind, what = kinds[choose(what, name, kinds)], f"{what} '{name}'"
    given = {key: value for key, value in settings.items() if value is not None}
    check_settings(kind, what, given)
    return checked(kind, given, what)


def check_settings(
    kind: Callable[..., Any], what: str, settings: Iterable[str], fixed: Iterable[str] = ()
) -> None:
    """Raise a UserError for settings that a kind of thing does not have, naming those it has, but
    not what is ``fixed``.

    >>> check_settings(lambda low=0, high=1: None, "a range", ["low"])
    """
    known = sorted(set(inspect.signature(kind).parameters) - set(fixed))
    for name in settings:
        if name not in known:
            has = f"choose from {', '.join(known)}" if known else "it has none"
            raise UserError(f"{what} has no setting '{shortened(name)}': {has}")
