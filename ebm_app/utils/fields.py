"""Settings as frozen pydantic dataclasses, whose field types define the valid ranges.

JSON files, command lines and Python calls are validated against the same types. Constructing a
settings class with invalid values raises ``pydantic.ValidationError``, which the functions of this
package convert to a one-line ``UserError``.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Annotated, Any, Protocol, TypeVar, dataclass_transform, runtime_checkable

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import BeforeValidator, ConfigDict, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from ebm_app.utils.errors import UserError, describe_errors, shorten

T = TypeVar("T")


@runtime_checkable
class Array(Protocol):
    """Number or array of numpy or torch, without importing either."""

    def tolist(self) -> Any:
        """Return the values as a Python number or nested lists."""


def to_python(value: Any) -> Any:
    """Convert numbers and arrays of numpy and torch to Python; return other values unchanged."""
    return value.tolist() if isinstance(value, Array) else value


def _check_path(value: Any) -> str | os.PathLike:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"must be a path or a name, got {shorten(repr(value))}")
    return value


#: Refuses unknown keys, type conversions, and non-finite values
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
ARGUMENT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
#: Max integer
LARGEST = 2**31 - 1
#: Python, numpy and torch numbers
Int = Annotated[int, BeforeValidator(to_python)]
Float = Annotated[float, BeforeValidator(to_python)]
PositiveInt = Annotated[Int, Ge(1), Le(LARGEST)]
Count = Annotated[Int, Ge(0), Le(LARGEST)]
AtLeastTwo = Annotated[Int, Ge(2), Le(LARGEST)]
Seed = Annotated[Int, Ge(0), Lt(2**63)]
#: Grey levels of an image
NumLevels = Annotated[Int, Ge(2), Le(256)]
#: Max side of an image in pixels, and max number of classes
LARGEST_SIDE, MAX_CLASSES = 4096, 100_000
Side = Annotated[Int, Ge(1), Le(LARGEST_SIDE)]
#: (C, H, W)
ImageShape = Annotated[tuple[Side, ...], Len(3, 3)]
#: Images per batch
BatchSize = Annotated[Int, Ge(1), Le(2**16)]
#: Monte Carlo draws to average
Draws = Annotated[Int, Ge(1), Le(1000)]
#: Random probes of a divergence; 0 computes it exactly
Probes = Annotated[Int, Ge(0), Le(1000)]
#: Halvings of a solver's steps
Refinements = Annotated[Int, Ge(0), Le(20)]
#: Steps of a solver, or temperatures
Steps = Annotated[Int, Ge(1), Le(100_000)]
#: Nodes of a quadrature rule; the error estimate needs at least 3
Nodes = Annotated[Int, Ge(3), Le(1024)]
#: Nodes of a variational bound. With 8, the rule exceeds the integral by up to 0.01 nats per
#: dimension of a Gaussian, with 12 by 0.001
BoundNodes = Annotated[Int, Ge(12), Le(1024)]
Number = Annotated[Float, Ge(-1e30), Le(1e30)]
Positive = Annotated[Float, Gt(0), Le(1e30)]
NonNegative = Annotated[Float, Ge(0), Le(1e30)]
#: Text that is not empty, or ``os.PathLike``
PathArgument = Annotated[Any, PlainValidator(_check_path)]
#: In [0, 1)
Share = Annotated[Float, Ge(0), Lt(1)]
#: In [0, 1]
Probability = Annotated[Float, Ge(0), Le(1)]
#: In (0, 1)
Fraction = Annotated[Float, Gt(0), Lt(1)]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def configuration(kind: type | None = None, **options: Any) -> Any:
    """Decorate a class as a frozen pydantic dataclass; ``options`` are passed to ``dataclass``."""
    if kind is None:
        return partial(configuration, **options)
    return dataclass(kind, frozen=True, config=STRICT, **options)


def setting(text: str, default: Any) -> Any:
    """Return a dataclass field with a help text, which makes it a flag."""
    return dataclasses.field(default=default, metadata={"help": text})


@contextmanager
def user_errors(where: str = "") -> Iterator[None]:
    """Convert a ``ValidationError`` to a ``UserError`` whose message starts with ``where``."""
    try:
        yield
    except (ValidationError, UserError) as error:
        text = describe_errors(error)
        raise UserError(f"{where}: {text}" if where else text) from None


def check_argument(kind: Any, name: str, value: Any) -> Any:
    """Validate an argument and return it as type ``kind``.

    Raises:
        UserError: for a value of the wrong type or out of range.

    >>> import numpy as np
    >>> check_argument(Seed, "seed", np.int64(3))
    3
    """
    with user_errors(name):
        return TypeAdapter(kind, config=ARGUMENT).validate_python(to_python(value))


def from_strings(kind: type[T], texts: Mapping[str, str]) -> T:
    """Build a settings class from field name -> string."""
    with user_errors(kind.__name__):
        return TypeAdapter(kind).validate_python(dict(texts), strict=False)


def from_dict(kind: type[T], data: Any, where: str) -> T:
    """Build a settings class from JSON data; error messages start with ``where``.

    Raises:
        UserError: for unknown or missing keys, and invalid values.
    """
    text = to_json(data, inf_nan_mode="constants", fallback=_to_json)
    with user_errors(where):
        return TypeAdapter(kind).validate_json(text, strict=True)


def _to_json(value: Any) -> Any:
    plain = to_python(value)
    # a text, whose validation error names the field
    return repr(value) if plain is value else plain


def from_attributes(kind: type[T], source: Any, **overrides: Any) -> T:
    """Build a settings class from the fields of ``source`` with the same names."""
    names = {item.name for item in dataclasses.fields(kind)}
    shared = [item.name for item in dataclasses.fields(source) if item.name in names]
    return kind(**{name: getattr(source, name) for name in shared} | overrides)


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a dataclass to JSON data; paths become strings."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def finite_or_none(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Replace non-finite numbers by None, which is null in JSON."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}
