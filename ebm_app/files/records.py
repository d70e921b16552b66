"""JSON records, read with strict keys, types and ranges."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from ebm_app.errors import UserError
from ebm_app.fields import STRICT, shortened
from ebm_app.files.writing import replace_file

T = TypeVar("T")
#: bytes of a record; those of long runs have some hundred thousand
LARGEST_RECORD = 2**26
#: faults of a record that a message names
SHOWN_FAULTS = 3
#: what pydantic says, and what a message of this package does
WORDS = {
    "Input should be": "must be",
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready data."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """The dataclass ``cls`` from JSON-ready data: every key known, every required key there, types
    and ranges right.

    Raises:
        UserError: naming the keys and ``where`` they stand.
    """
    try:
        text = to_json(data, inf_nan_mode="constants")
        return TypeAdapter(cls).validate_json(text)
    except ValidationError as error:
        raise UserError(f"{where}: {faults(error)}") from None
    except ValueError as error:  # what JSON cannot say
        raise UserError(f"{where}: {shortened(error)}") from None


def faults(error: ValidationError) -> str:
    """The first faults of a record, in words."""
    found = error.errors(include_url=False, include_context=False)
    more = f" and {len(found) - SHOWN_FAULTS} more" if len(found) > SHOWN_FAULTS else ""
    return "; ".join(map(_fault, found[:SHOWN_FAULTS])) + more


def _fault(found: ErrorDetails) -> str:
    place = shortened(".".join(map(str, found["loc"])))
    match found["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"unknown key {place}"
        case "missing":
            return f"key {place} is missing"
    message = found["msg"]
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return f"{place} {message}, not {shortened(repr(found['input']))}".strip()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: where the file is missing, no plain file, too large, or not a JSON object.
    """
    data = parse_json(read_bytes(path, LARGEST_RECORD), str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not a {type(data).__name__}")
    return data


def parse_json(content: bytes, where: str) -> Any:
    """JSON data, without numbers that are none.

    Raises:
        UserError: where it is not JSON, nested too deep, or holds a number out of range.
    """
    try:
        return TypeAdapter(JsonValue, config=STRICT).validate_python(from_json(content))
    except ValidationError as error:
        raise UserError(f"{where}: {faults(error)}") from None
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({shortened(error)})") from None


def read_bytes(path: Path, largest: int) -> bytes:
    """The content of a plain file.

    Raises:
        UserError: where it is missing, no plain file, unreadable, or larger than ``largest``.
    """
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a plain file")
        if path.stat().st_size > largest:
            raise UserError(f"{path} is larger than {largest} bytes: it is no record of ebm_app")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON object, indented; see ``replace_file``."""
    replace_file(path, (json.dumps(data, indent=2) + "\n").encode())
