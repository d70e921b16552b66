"""Fields of a configuration that say what they are: a command line is made from them.

The ranges of numbers are part of their types, so that JSON files, command lines and Python calls
are held to the same ones.
"""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, TypeAdapter

#: how JSON and command lines are read: no key too many, no type converted, no NaN
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
#: counts, sizes and seeds beyond these are slips of the pen
LARGEST = 2**31 - 1
PositiveInt = Annotated[int, Ge(1), Le(LARGEST)]
Count = Annotated[int, Ge(0), Le(LARGEST)]
#: what has a spread
Several = Annotated[int, Ge(2), Le(LARGEST)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
#: what is computed together: more fill the memory, and are no faster
BatchSize = Annotated[int, Ge(1), Le(2**16)]
#: draws whose mean is taken
Draws = Annotated[int, Ge(1), Le(1000)]
#: of an adaptive solver; below, float64 has no digits left
Tolerance = Annotated[float, Ge(1e-14), Lt(1)]
#: times that the steps of a solver are halved
Refinements = Annotated[int, Ge(0), Le(20)]
#: steps of a solver, or temperatures
Steps = Annotated[int, Ge(1), Le(100_000)]
#: nodes of a quadrature rule, which is compared with one of half as many
Nodes = Annotated[int, Ge(3), Le(1024)]
Number = Annotated[float, Ge(-1e300), Le(1e300)]
Positive = Annotated[float, Gt(0), Le(1e300)]
NonNegative = Annotated[float, Ge(0), Le(1e300)]
#: a share that may be nothing, but not all
Share = Annotated[float, Ge(0), Lt(1)]
#: strictly between 0 and 1
Fraction = Annotated[float, Gt(0), Lt(1)]

NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
BOUNDS = {
    Ge: "at least {0.ge}",
    Gt: "above {0.gt}",
    Le: "up to {0.le}",
    Lt: "below {0.lt}",
}
#: by the name of a setting and its value, the other settings that are not read then
Unread = Mapping[str, Mapping[str, Sequence[str]]]
#: characters of a user's own text that a message repeats
SHOWN = 60
#: characters of a list of clauses, after which none follows
SHOWN_TEXT = 160


def setting(text: str, default: Any, rare: bool = False) -> Any:
    """A dataclass field with a help text; a ``rare`` one stands among the advanced flags.

    >>> from dataclasses import dataclass, fields
    >>> @dataclass
    ... class Noise:
    ...     seed: Seed = setting("seed of all noise", 0)
    >>> fields(Noise)[0].metadata["help"]
    'seed of all noise'
    """
    return field(default=default, metadata={"help": text, "rare": rare})


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
    """What a value of this type is; bounds that nobody meets are left out.

    >>> in_words(BatchSize), in_words(Share)
    ('a whole number, at least 1 and up to 65536', 'a number, at least 0 and below 1')
    """
    return ", ".join(filter(None, [NOUNS[plain(hint)], limits(hint, shown=1e300)]))


def shortened(value: Any) -> str:
    """A user's own value for a message: one line, no longer than fits there.

    >>> shortened("x" * 1000) == "x" * SHOWN + "..."
    True
    """
    text = " ".join(str(value)[: 4 * SHOWN].split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def listed(clauses: Sequence[str], total: int) -> str:
    """The first of ``total`` clauses of a message, as many as fit there, and how many more.

    >>> listed(["a is wrong", "b is wrong"], 5)
    'a is wrong; b is wrong and 3 more'
    """
    shown = list(clauses[:1])
    while len(shown) < len(clauses) and len("; ".join(shown)) < SHOWN_TEXT:
        shown.append(clauses[len(shown)])
    rest = total - len(shown)
    return "; ".join(shown) + (f" and {rest} more" if rest else "")


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
