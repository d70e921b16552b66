"""What the scripts share: flags made from configurations, and run records."""

import argparse
import dataclasses
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter

from ebm_app.io.errors import UserError
from ebm_app.io.fields import LARGEST, STRICT, BatchSize, PositiveInt, Seed, Share, shortened  # noqa: F401
from ebm_app.io.processes import resolve_device
from ebm_app.io.registry import choose, nearest
from ebm_app.io.run_record import RunRecord

__all__ = ["Parser", "RunRecord", "flag", "resolve_device"]


NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
BOUNDS = {
    Ge: "at least {0.ge}",
    Gt: "above {0.gt}",
    Le: "up to {0.le}",
    Lt: "below {0.lt}",
}


def plain(hint: Any) -> type:
    """The type of a value without its range.

    >>> plain(PositiveInt), plain(str)
    (<class 'int'>, <class 'str'>)
    """
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def limits(hint: Any, shown: float = LARGEST) -> str:
    """The range of a type in words, or nothing; bounds from ``shown`` on are left out.

    >>> limits(Share), limits(PositiveInt), limits(str)
    ('at least 0 and below 1', 'at least 1', '')
    """
    bounds = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    words = [
        BOUNDS[type(bound)].format(bound)
        for bound in bounds
        if abs(next(iter(asdict(bound).values()))) < shown
    ]
    return " and ".join(words)


def in_words(hint: Any) -> str:
    """What a value of this type is; bounds that no value reaches are left out.

    >>> in_words(BatchSize), in_words(Share)
    ('a whole number, at least 1 and up to 65536', 'a number, at least 0 and below 1')
    """
    return ", ".join(filter(None, [NOUNS[plain(hint)], limits(hint, shown=1e300)]))


def parsed(hint: Any, text: str) -> Any:
    """The value of type ``hint`` that a text stands for.

    >>> parsed(PositiveInt, "12"), parsed(bool, "true")
    (12, True)

    Raises:
        ValueError: saying what it must be.
    """
    kind = plain(hint)
    try:
        value = {"true": True, "false": False}[text] if kind is bool else kind(text)
        return TypeAdapter(hint, config=STRICT).validate_python(value)
    except (ValueError, KeyError):
        raise ValueError(f"must be {in_words(hint)}, not '{shortened(text)}'") from None


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


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description, and appends every default that says something and the
    range of every number."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help or "", action.default
        if "(default" in text:
            return text
        silent = any(default is value for value in (None, False, argparse.SUPPRESS))
        if silent or default == [] or "default" in text:
            default = ""
        return with_notes(text, default, getattr(action.type, "hint", None))


def with_notes(text: str, default: Any, hint: Any) -> str:
    """A help text with the default of its flag, unless that is "", and the range of its type.

    >>> with_notes("seed of all noise", 0, Seed)
    'seed of all noise (default: 0; at least 0)'
    """
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    notes = "; ".join(filter(None, [shown and f"default: {shown}", limits(hint)]))
    return f"{text} ({notes})" if notes else text


class Parser(argparse.ArgumentParser):
    """An argument parser with groups of flags, which the help shows in the order of ``GROUPS``."""

    GROUPS = ("data", "run", "training", "model", "advanced")
    #: how the value of a flag is written in the help
    METAVARS = {int: "N", float: "X", str: "NAME"}

    def __init__(self, description: str) -> None:
        super().__init__(
            description=description, formatter_class=HelpFormatter, allow_abbrev=False
        )
        #: the flags of the last command line, by the names of their values
        self.given: set[str] = set()
        self.groups = {title: self.add_argument_group(title) for title in self.GROUPS}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; the usage line names the positional arguments only."""
        names = [action.metavar or action.dest for action in self._get_positional_actions()]
        self.usage = " ".join(["%(prog)s", *map(str.upper, names), "[flags]"])
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it.

        Raises:
            UserError: for a flag that does not exist, naming the nearest one, or a wrong value.
        """
        words = [word.partition("=")[0] for word in (sys.argv[1:] if args is None else args)]
        flags = self._option_string_actions
        self.given = {flags[word].dest for word in words if word in flags}
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            raise UserError(
                f"there is no flag {shortened(name)}: {nearest(name, self._option_string_actions)}"
                "--help shows them all"
            )
        return namespace

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Raise a UserError if one of these flags was given: it has no effect."""
        if vain := [name for name in names if name in self.given]:
            raise UserError(f"--{', --'.join(vain)} {reason}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A value outside a flag's choices raises an error that names the nearest choice."""
        if action.choices is not None:
            choose(action.dest.replace("_", " "), value, action.choices)

    def error(self, message: str) -> typing.NoReturn:
        """Argparse's own complaints end as any other mistake does."""
        raise UserError(message)

    def group(self, title: str) -> argparse._ArgumentGroup:
        """The flags of this title, one of ``GROUPS``."""
        return self.groups[title]

    def add_common(self, seeds: Any = Seed) -> None:
        """The flags of every script, a seed being one of ``seeds``."""
        self.add_argument("--seed", type=flag(seeds), default=0, help="seed of all noise")
        self.add_argument("--device", default="auto", help="auto, cpu or cuda")

    def add_config(
        self, cls: type, title: str, kinds: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """A flag for every field of a configuration that has a help text, in the group ``title``,
        or in "advanced" if it is rare. A flag that is not given is absent from the result.

        Args:
            kinds: for a field that names a kind of thing, the dict of the names.
        """
        hints, kinds = typing.get_type_hints(cls, include_extras=True), kinds or {}
        for item in dataclasses.fields(cls):
            if "help" not in item.metadata:
                continue
            options = described(kinds[item.name]) if item.name in kinds else ""
            text = ": ".join(filter(None, [item.metadata["help"], options]))
            hint, default = plain(hints[item.name]), item.default
            several = typing.get_origin(hint) is tuple
            kind = typing.get_args(hint)[0] if several else hints[item.name]
            shown = default or "none" if several else default
            self.group("advanced" if item.metadata["rare"] else title).add_argument(
                f"--{item.name}",
                type=flag(kind),
                nargs="*" if several else None,
                metavar=self.METAVARS[plain(kind)],
                default=argparse.SUPPRESS,
                help=with_notes(text, shown, kind).replace("%", "%%"),
            )


def flag(hint: Any) -> Callable[[str], Any]:
    """What argparse makes a value of type ``hint`` with; a wrong one ends in a sentence.

    >>> from ebm_app.io.fields import Count
    >>> flag(Count)("3")
    3
    """

    def convert(text: str) -> Any:
        try:
            return parsed(hint, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.hint = hint
    return convert
