"""Settings as frozen dataclasses whose types hold the ranges of their values.

JSON files, command lines and Python calls are held to the same ones, by pydantic.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import field, fields
from functools import partial, wraps
from math import isfinite
from typing import Annotated, Any, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails, to_json

from ebm_app.utils.errors import UserError

T = TypeVar("T")
#: no key too many, no type converted, no NaN
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
ARGUMENT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
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
#: times that the steps of a solver are halved
Refinements = Annotated[int, Ge(0), Le(20)]
#: steps of a solver, or temperatures
Steps = Annotated[int, Ge(1), Le(100_000)]
#: nodes of a quadrature rule, which is compared with one of half as many
Nodes = Annotated[int, Ge(3), Le(1024)]
Number = Annotated[float, Ge(-1e30), Le(1e30)]
Positive = Annotated[float, Gt(0), Le(1e30)]
NonNegative = Annotated[float, Ge(0), Le(1e30)]
#: a share that may be nothing, but not all
Share = Annotated[float, Ge(0), Lt(1)]
Probability = Annotated[float, Ge(0), Le(1)]
#: strictly between 0 and 1
Fraction = Annotated[float, Gt(0), Lt(1)]

#: characters of a user's own text that a message repeats
SHOWN = 60
#: mistakes that a message names at most
SHOWN_FAULTS = 3


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def configuration(kind: type | None = None, **options: Any) -> Any:
    """A frozen dataclass whose fields are checked when it is made, wherever it is made: by
    decoration, with the ``options`` of dataclasses.

    Raises (the class, when it is made):
        UserError: naming the fields that are wrong, and what they must be.
    """
    if kind is None:
        return partial(configuration, **options)
    made = dataclass(kind, frozen=True, config=STRICT, **options)
    strict = made.__init__

    @wraps(strict)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            strict(self, *map(plain, args), **{key: plain(v) for key, v in kwargs.items()})
        except ValidationError as error:
            raise UserError(describe_errors(error)) from None

    made.__init__ = init
    return made


def renamed(**old_names: str) -> Any:
    """Return the type of a string setting whose old values are replaced by the new ones.

    >>> check_argument(renamed(clock="arc_length"), "schedule", "clock")
    'arc_length'
    """
    return Annotated[str, AfterValidator(lambda name: old_names.get(name, name))]


def setting(text: str, default: Any) -> Any:
    """A dataclass field with a help text, which makes it a flag."""
    return field(default=default, metadata={"help": text})


def advanced(text: str, default: Any) -> Any:
    """A ``setting`` that ``--help`` leaves out and ``--help_advanced`` shows."""
    return field(default=default, metadata={"help": text, "advanced": True})


def from_strings(kind: type[T], texts: dict[str, str]) -> T:
    """The configuration ``kind`` with the values that ``texts`` stand for, by key."""
    try:
        made = TypeAdapter(kind).validate_strings(texts)
    except ValidationError as error:
        raise UserError(f"{kind.__name__}: {describe_errors(error)}") from None
    for key, text in texts.items():
        check_digits(key, text, getattr(made, key))
    return made


def check_digits(name: str, text: str, value: Any) -> None:
    """Raise a UserError for a number with an underscore, which Python reads as a thousand's."""
    if "_" in text and isinstance(value, int | float) and not isinstance(value, bool):
        raise UserError(f"{name}: {text} is no number, leave out the underscore")


def plain(value: Any) -> Any:
    """Numbers of numpy and torch, alone or in arrays, as Python's; anything else as it is."""
    try:
        return value.tolist() if hasattr(value, "tolist") else value
    except (RuntimeError, TypeError):  # a tensor without numbers, or a class
        return value


def check_argument(kind: Any, name: str, value: Any) -> Any:
    """The ``value`` of an argument, which must be of the type ``kind`` and in its range.

    >>> import numpy as np
    >>> check_argument(Seed, "seed", np.int64(3))
    3
    """
    try:
        return TypeAdapter(kind, config=ARGUMENT).validate_python(plain(value))
    except ValidationError as error:
        raise UserError(f"{name}: {describe_errors(error)}") from None


def from_attributes(kind: type[T], flat: Any, **others: Any) -> T:
    """The dataclass ``kind`` with the values that ``flat`` has under the same names, and
    ``others``."""
    names = [item.name for item in fields(kind) if hasattr(flat, item.name)]
    return kind(**{name: getattr(flat, name) for name in names} | others)


def describe_errors(error: ValueError) -> str:
    """The first mistakes that pydantic found, in words."""
    if not isinstance(error, ValidationError):
        return shorten(error)
    found = error.errors(include_url=False, include_context=False)
    return "; ".join(_fault(one) for one in found[:SHOWN_FAULTS])


def _fault(found: ErrorDetails) -> str:
    place = shorten(".".join(map(str, found["loc"])))
    match found["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"unknown key {place}"
        case "missing" | "missing_argument":
            return f"key {place} is missing"
        case "value_error":  # a check of this package, in its own words
            return f"{place} {found['msg'].removeprefix('Value error, ')}".strip()
    message = found["msg"].replace("Input should be", "must be")
    return f"{place} {message}, not {shorten(repr(found['input']))}".strip()


def shorten(value: Any) -> str:
    """A user's own value for a message: one line, no longer than fits there.

    >>> shorten("x" * 1000) == "x" * SHOWN + "..."
    True
    """
    text = " ".join(str(value)[: 4 * SHOWN].split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready data; paths become texts."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def finite_or_none(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers for JSON, whose only word for one that is not finite is null."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """The dataclass ``cls`` from JSON-ready data: every key known, every required key there, types
    and ranges right."""
    try:
        text = to_json(data, inf_nan_mode="constants", fallback=_as_json)
        return TypeAdapter(cls).validate_json(text, strict=True)
    except ValueError as error:
        raise UserError(f"{where}: {describe_errors(error)}") from None


def _as_json(value: Any) -> Any:
    """Numbers of numpy and torch, alone or in arrays; anything else as a text, which is refused
    where it is no setting."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
