"""Reading and writing files: JSON, safetensors and figures.

Files are written atomically. Missing, unreadable or damaged files raise a ``UserError``.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from pydantic_core import from_json
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically.

    A temporary file is written, flushed to disk and renamed, so readers see either the old or the
    new file, even after a crash. A symbolic link or pipe at ``path`` is replaced, not followed.
    """
    pending = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with name_in_errors(path):
            with pending.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(pending, path)
            sync_folder(path.parent)
    finally:
        pending.unlink(missing_ok=True)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add the path to an ``OSError`` without a file name, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for binary reading, without blocking on a pipe or device."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file. Remove it or use another path.")
        return path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Convert errors caused by the content of a file to a ``UserError``."""
    try:
        yield
    except UserError:
        raise
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"key {error} is missing" if isinstance(error, KeyError) else error
        text = f"{path} is damaged or truncated ({shorten(reason)}). Restore it from a copy."
        raise UserError(text) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    with open_file(path) as file:
        content = file.read()
    try:
        data = from_json(content)  # refuses deep nesting and lone surrogates
    except ValueError as error:
        raise UserError(f"{path} is not a JSON object: {shorten(error)}.") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a JSON object, but a {type(data).__name__}.")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON object atomically. Bytes of file names that are not UTF-8 become "?"."""
    try:
        text = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise UserError(f"Cannot write {path}: {error}.") from None
    replace_file(path, (text + "\n").encode("utf-8", "replace"))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, by name."""
    open_file(path).close()
    with report_damage(path):
        return load_file(path)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically, with default permissions."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(ready))


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> None:
    """Write a matplotlib figure as a PNG file, atomically."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    replace_file(path, content.getvalue())
