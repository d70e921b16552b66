"""JSON records, read with strict keys, types and ranges."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from ebm_app.io.errors import UserError
from ebm_app.io.fields import STRICT, faults, plain, shortened
from ebm_app.io.writing import replace_file

T = TypeVar("T")
#: bytes of a record; those of long runs have some hundred thousand
LARGEST_RECORD = 2**24
JSON_VALUE = TypeAdapter(JsonValue, config=STRICT)


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready data; paths become texts."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """The dataclass ``cls`` from JSON-ready data: every key known, every required key there, types
    and ranges right.

    Raises:
        UserError: naming the keys and ``where`` they stand.
    """
    try:
        text = to_json(data, inf_nan_mode="constants", fallback=_as_json)
        return TypeAdapter(cls).validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {faults(error)}") from None
    except ValueError as error:  # what JSON cannot say
        raise UserError(f"{where}: {shortened(error)}") from None


def _as_json(value: Any) -> Any:
    found = plain(value)
    if found is value:
        raise ValueError(f"a {type(value).__name__} is no setting: give numbers and texts")
    return found


def read_json(path: Path, largest: int = LARGEST_RECORD) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: where the file is missing, no plain file, larger than ``largest`` bytes, or not
            a JSON object.
    """
    data = parse_json(read_bytes(path, largest), str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not a {type(data).__name__}")
    return data


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Within it, a record of this program is read by its keys.

    Raises:
        UserError: where a key is missing or holds what the program does not write.
    """
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"key {error} is missing" if isinstance(error, KeyError) else shortened(error)
        raise UserError(f"{path} is damaged ({shortened(found)}): write it anew") from None


def parse_json(content: bytes, where: str) -> Any:
    """JSON data, without numbers that are not finite.

    Raises:
        UserError: where it is not JSON, nested too deep, or holds a number out of range.
    """
    try:
        return JSON_VALUE.validate_python(from_json(content))
    except ValidationError as error:
        raise UserError(f"{where}: {faults(error)}") from None
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({shortened(error)})") from None


def read_bytes(path: Path, largest: int) -> bytes:
    """The content of a plain file of at most ``largest`` bytes; errors as of ``open_plain``."""
    content = read_start(path, largest + 1)
    if len(content) > largest:
        raise UserError(f"{path} is larger than {largest} bytes: it is no record of ebm_app")
    return content


def read_start(path: Path, size: int) -> bytes:
    """The first ``size`` bytes of a plain file; errors as of ``open_plain``."""
    with open_plain(path) as file:
        return file.read(size)


def open_plain(path: Path) -> BinaryIO:
    """A plain file, open to be read in bytes; a pipe or a device in its place is never waited for.

    Raises:
        UserError: where it is missing, no plain file, or unreadable.
    """
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a plain file: put one in its place, or remove it")
        # not blocked, should it have become a pipe since
        return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except FileNotFoundError:
        raise UserError(f"{path} is missing: put it there, or give another path") from None
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror}): check its permissions"
        raise UserError(problem) from None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON object, indented; see ``replace_file``.

    Raises:
        UserError: where a number in it is not finite, for which JSON has no word.
    """
    try:
        text = json.dumps(data, indent=2, allow_nan=False)
    except ValueError as error:
        raise UserError(f"{path} was not written: {error}: check the settings") from None
    replace_file(path, (text + "\n").encode())
