"""Files that a run reads and writes: JSON records and safetensors, written whole or not at all."""

import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import json
from collections.abc import Mapping
from typing import Any, BinaryIO, TypeVar

from pydantic import JsonValue, TypeAdapter
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ebm_app.utils.errors import UserError, describe_errors, shorten
from ebm_app.utils.fields import STRICT


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside, force it to the disk and rename it: a reader finds the old one
    or the new one, complete, at whatever time of a crash. A link or a pipe in its place is
    replaced, not written to."""
    pending = path.with_name(f".{path.name}.tmp")
    with lock_folder(path.parent):  # two runs may write to one folder
        pending.unlink(missing_ok=True)
        try:
            with pending.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(pending, path)
        except BaseException:
            pending.unlink(missing_ok=True)
            raise


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> None:
    """Write a figure of matplotlib as a PNG; see ``replace_file``."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    replace_file(path, content.getvalue())


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Within it, no other run writes to a folder; its names are then forced to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


T = TypeVar("T")
#: bytes of a record; those of long runs have some hundred thousand
LARGEST_RECORD = 2**24
JSON_OBJECT = TypeAdapter(dict[str, JsonValue], config=STRICT)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; errors as of ``open_file``."""
    with open_file(path) as file:
        content = file.read(LARGEST_RECORD + 1)
    if len(content) > LARGEST_RECORD:
        raise UserError(f"{path} is larger than {LARGEST_RECORD} bytes: it is no record")
    try:
        return JSON_OBJECT.validate_python(from_json(content))
    except ValueError as error:
        raise UserError(f"{path} is no JSON object: {describe_errors(error)}") from None


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Within it, a record of this program is read by its keys: other ones are a UserError."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"key {error} is missing" if isinstance(error, KeyError) else shorten(error)
        raise UserError(f"{path} is damaged ({shorten(found)}): write it anew") from None


def open_file(path: Path) -> BinaryIO:
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


ERRORS = (SafetensorError, OSError, ValueError, AttributeError)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the permissions of any other: the library's own way to a file
    leaves it unreadable for everyone else."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(ready))


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Within it, a safetensors file is read; a missing, truncated or other one is a UserError."""
    open_file(path).close()
    try:
        yield
    except ERRORS as error:
        text = f"{path} is damaged or truncated ({shorten(error)}): copy it anew"
        raise UserError(text) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    with whole(path):
        return load_file(path)


def read_tensor_info(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a safetensors file by name, from its header alone: dtype in the words of
    safetensors, such as "F32", and shape."""
    with whole(path), safe_open(path, "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}
        return {name: (x.get_dtype(), tuple(x.get_shape())) for name, x in parts.items()}
