"""Arrays of real numbers from ``.npy`` files, as columns. Nothing is ever unpickled."""

import os
import tokenize
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened

# What numpy raises on a header or data that are not those of an .npy file.
UNREADABLE = (OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError)
UNREADABLE += (tokenize.TokenError, MemoryError, RecursionError, OverflowError)
#: Kinds of numpy dtypes that are refused; the rest are real numbers and true/false.
NOT_NUMBERS = {
    "O": "Python objects (a pickle, which is never opened)",
    "S": "text",
    "U": "text",
    "T": "text",
    "c": "complex numbers",
    "M": "dates",
    "m": "time spans",
    "V": "records",
}


def read_npy(path: str | Path) -> np.ndarray:
    """The array of an ``.npy`` file as (N, d) in float64; the dtype is looked at before the data.

    Raises:
        UserError: for a file that is missing, empty, damaged or of another format, and as
            ``as_columns``.
    """
    file_path = existing(path)
    try:
        with file_path.open("rb") as file:
            major, _ = npy.read_magic(file)
            read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
            shape, _, dtype = read_header(file)
            _check_kind(dtype, f"'{file_path}'")
            # numpy takes the memory of the announced shape before it meets the end of the file
            if (
                file.tell() + dtype.itemsize * np.prod(shape, dtype=object)
                > file_path.stat().st_size
            ):
                raise EOFError("the file ends early")
            file.seek(0)
            values = npy.read_array(file, allow_pickle=False)
    except UserError:
        raise
    except UNREADABLE as error:
        fail_to_read(file_path, "an .npy file, with numpy.save", error)
    return as_columns(values, f"'{file_path}'")


def as_columns(values: np.ndarray, name: str) -> np.ndarray:
    """An array (N,) or (N, d) of real numbers as (N, d) in float64; (N,) is one column.

    Args:
        values: Whole, floating-point or true/false values.
        name: What a message calls them.

    Raises:
        UserError: for another kind of content or another number of dimensions.
    """
    values = np.asarray(values)
    _check_kind(values.dtype, name)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not values.shape[1]:
        raise UserError(
            f"{name} has the shape {values.shape}: give rows by columns (N, d) or one column (N,)"
        )
    return values.astype(np.float64)


def column_labels(values: Any, name: str) -> list[str]:
    """What messages call the columns of an array, or of a data frame, which names them.

    >>> column_labels(np.zeros((3, 2)), "x")
    ['column 1 of x', 'column 2 of x']
    """
    names = getattr(values, "columns", None)
    if names is not None:
        return [f"'{column}'" for column in names]
    shape = np.shape(values)
    return [f"column {i + 1} of {name}" for i in range(shape[1] if len(shape) > 1 else 1)]


def check_same_columns(one: Any, other: Any, names: tuple[str, str]) -> None:
    """Raise a UserError for two data frames whose columns differ by name or order; arrays have no
    names to compare.

    >>> check_same_columns(np.zeros((3, 2)), np.zeros((5, 2)), ("x0", "x1"))
    """
    columns = [getattr(values, "columns", None) for values in (one, other)]
    if any(part is None for part in columns):
        return
    first, second = ([str(name) for name in part] for part in columns)
    if first != second:
        raise UserError(
            f"{names[0]} has the columns {shortened(', '.join(first))} and {names[1]} has "
            f"{shortened(', '.join(second))}: give both the same, in the same order"
        )


def existing(path: str | Path) -> Path:
    """The path of a file that exists and is not empty; ``~`` is the home folder."""
    path = Path(path).expanduser()
    if not os.path.isfile(path):
        raise UserError(f"there is no file '{path}': check the path")
    if not path.stat().st_size:
        raise UserError(f"the file '{path}' is empty: check that it was written")
    return path


def fail_to_read(path: Path, form: str, error: Exception) -> NoReturn:
    """Raise a UserError with the reason in one line and the format to save the file in."""
    reason = shortened(error) or type(error).__name__
    raise UserError(f"cannot read '{path}' ({reason}): save it as {form}") from error


def _check_kind(dtype: np.dtype, name: str) -> None:
    if dtype.kind in NOT_NUMBERS:
        raise UserError(f"{name} holds {NOT_NUMBERS[dtype.kind]}: save it as real numbers")
