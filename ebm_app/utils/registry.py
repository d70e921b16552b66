"""Registries: dicts of classes that settings select by name. Users can extend them
(docs/extending.md)."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeVar

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import check_argument, from_strings, user_errors

T = TypeVar("T")
#: Min likeness of the name that an error suggests, as in ``difflib.get_close_matches``
CLOSE = 0.6
#: Max number of names that an error lists; of more, it lists the nearest three
FEW = 6


def choose(kind: str, name: str, options: Iterable[str]) -> str:
    """Return ``name`` if it is one of ``options``. The error lists the nearest of many options.

    Args:
        kind: what the options are, in error messages, such as "sampler".
    """
    names = sorted(options)
    if not isinstance(name, str) or name not in names:

        def likeness(option: str) -> float:
            initials = "".join(word[:1] for word in option.split("_"))  # lr for learning_rate
            return max(SequenceMatcher(None, str(name), x).ratio() for x in (option, initials))

        nearest = sorted(names, key=likeness, reverse=True)[:3]
        advice = f"the nearest are {', '.join(nearest)}"
        if len(names) <= FEW:
            advice = f"choose one of {', '.join(names) or 'none'}"
        if nearest and likeness(nearest[0]) >= CLOSE:
            advice = f"did you mean '{nearest[0]}'? {advice[0].upper()}{advice[1:]}"
        raise UserError(f"unknown {kind} '{shorten(name)}': {advice}")
    return name


def make(
    kinds: Mapping[str, type[T]],
    base: type[T],
    what: str,
    name: str | T,
    settings: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
) -> T:
    """Build an instance of one of ``kinds`` by name; return an instance of ``base`` unchanged.

    Args:
        what: what is built, in error messages, such as "sampler".
        settings: keyword arguments of the class; None selects the default.
        call: function that received the settings as further keyword arguments. The error of an
            unknown setting also suggests its arguments.

    Raises:
        UserError: for an unknown name or setting, a setting out of range, or settings of an
            instance.
    """
    chosen = {key: value for key, value in settings.items() if value is not None}
    if not isinstance(name, str):
        instance = check_argument(base, what, name)
        if chosen:
            raise UserError(
                f"The {what} {type(name).__name__} is an instance with its own settings, got "
                f"{', '.join(chosen)} in addition. Set them in the instance."
            )
        return instance
    kind = kinds[choose(what, name, kinds)]
    return build(kind, f"{what} {name}", chosen, call)


def own_arguments(call: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function or class, without self and ``**kwargs``."""
    found = inspect.signature(call).parameters.values()
    return [item.name for item in found if item.name != "self" and item.kind != item.VAR_KEYWORD]


def build(
    kind: type[T],
    what: str,
    settings: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
) -> T:
    """Build an instance of ``kind`` from a user's keyword arguments, see ``make``."""
    names, named = own_arguments(kind), f"setting of the {what}"
    if call is not None:
        names, named = [*own_arguments(call), *names], "argument"
    for key in settings:
        choose(named, key, names)
    with user_errors(what):
        return kind(**settings)


def settings_of_each(kinds: Mapping[str, type], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse settings KEY=VALUE for several named dataclasses.

    Each dataclass gets the settings that are its fields.

    Raises:
        UserError: for a setting that is unknown, out of range or set twice.
    """
    texts: dict[str, str] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if key in texts:
            raise UserError(f"{key} is set twice, to {texts[key]} and to {text}. Set it once.")
        texts[key] = text
    keys = {name: {item.name for item in dataclasses.fields(kind)} for name, kind in kinds.items()}
    for key in texts:
        choose(f"setting of {', '.join(kinds)}", key, set().union(*keys.values()))
    settings = {}
    for name, kind in kinds.items():
        own = {key: text for key, text in texts.items() if key in keys[name]}
        parsed = from_strings(kind, own)
        settings[name] = {key: getattr(parsed, key) for key in own}
    return settings
