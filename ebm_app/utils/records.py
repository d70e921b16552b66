"""JSON records, read with strict keys, types and ranges."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import STRICT, faults, shortened
from ebm_app.utils.writing import replace_file

T = TypeVar("T")
#: bytes of a record; those of long runs have some hundred thousand
LARGEST_RECORD = 2**24
JSON_OBJECT = TypeAdapter(dict[str, JsonValue], config=STRICT)


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready data; paths become texts."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers for JSON, whose only word for one that is not finite is null."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """The dataclass ``cls`` from JSON-ready data: every key known, every required key there, types
    and ranges right."""
    try:
        text = to_json(data, inf_nan_mode="constants", fallback=_as_json)
        return TypeAdapter(cls).validate_json(text, strict=True)
    except ValueError as error:
        raise UserError(f"{where}: {_reason(error)}") from None


def _as_json(value: Any) -> Any:
    """Numbers of numpy and torch, alone or in arrays; anything else as a text, which is refused
    where it is no setting."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _reason(error: ValueError) -> str:
    return faults(error) if isinstance(error, ValidationError) else shortened(error)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; errors as of ``open_plain``."""
    with open_plain(path) as file:
        content = file.read(LARGEST_RECORD + 1)
    if len(content) > LARGEST_RECORD:
        raise UserError(f"{path} is larger than {LARGEST_RECORD} bytes: it is no record")
    try:
        return JSON_OBJECT.validate_python(from_json(content))
    except ValueError as error:
        raise UserError(f"{path} is no JSON object: {_reason(error)}") from None


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Within it, a record of this program is read by its keys: other ones are a UserError."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"key {error} is missing" if isinstance(error, KeyError) else shortened(error)
        raise UserError(f"{path} is damaged ({shortened(found)}): write it anew") from None


def open_plain(path: Path) -> BinaryIO:
    """A plain file, open to be read in bytes; what else is in its place is never waited for."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a plain file: put one in its place, or remove it")
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path} is missing: put it there, or give another path") from None
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror}): check its permissions"
        raise UserError(problem) from None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON object, indented; see ``replace_file``."""
    try:
        text = json.dumps(data, indent=2, allow_nan=False)
    except ValueError as error:
        raise UserError(f"{path} was not written: {error}: check the settings") from None
    replace_file(path, (text + "\n").encode())
