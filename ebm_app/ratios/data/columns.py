r"""A user's own paired data: two ``.npy`` files, or two groups of columns of one CSV file.

Row i of x (N, dx) and row i of y (N, dy) are one draw of (X, Y); the rows are held to be
independent. Nothing is ever unpickled.
"""

import csv
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np
from numpy.lib import format as npy

from ebm_app.errors import UserError
from ebm_app.ratios.data.preprocessing import is_constant

MIN_ROWS = 10
# What numpy raises on a header or data that are not those of an .npy file.
UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError),
    *(tokenize.TokenError, MemoryError, RecursionError, OverflowError),
)
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

#: x (N, dx) and y (N, dy)
PairedData = tuple[np.ndarray, np.ndarray]


def read_pair(x_path: str | Path, y_path: str | Path, min_rows: int = MIN_ROWS) -> PairedData:
    """Read and check x and y from two ``.npy`` files of shape (N, d), or (N,) for one column.

    Returns:
        x (N, dx) and y (N, dy), float64.

    Raises:
        UserError: for a missing, empty or damaged file or one of another format, content that is
            not real numbers, more than two dimensions, and as ``check_pair``.
    """
    x, y = read_npy(x_path), read_npy(y_path)
    check_pair(x, y, min_rows)
    return x, y


def read_csv_pair(
    path: str | Path,
    x_columns: Sequence[str],
    y_columns: Sequence[str],
    min_rows: int = MIN_ROWS,
) -> PairedData:
    """Read and check x and y from the named columns of a CSV file.

    The file is UTF-8, its cells are separated by commas, its first line names the columns and a
    point marks the decimals. Blank lines are skipped; other columns may hold anything.

    Returns:
        x (N, dx) and y (N, dy), float64, their columns in the order of the names.

    Raises:
        UserError: for a missing or empty file or one that is not CSV, column names that are
            unknown or given twice, rows of unequal length, a cell that is not a number, and as
            ``check_pair``.
    """
    file_path = _existing(path)
    names = [*x_columns, *y_columns]
    _check_groups(x_columns, y_columns)
    try:
        with file_path.open(encoding="utf-8-sig", newline="") as file:
            values = np.array(list(_csv_rows(file, file_path, names)), dtype=np.float64)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        _fail_to_read(file_path, "comma-separated text in UTF-8", error)
    x, y = np.split(values.reshape(-1, len(names)), [len(x_columns)], axis=1)
    check_pair(x, y, min_rows, names)
    return x, y


def read_npy(path: str | Path) -> np.ndarray:
    """The array of an ``.npy`` file as (N, d) in float64; the dtype is looked at before the data.

    Raises:
        UserError: for a file that is missing, empty, damaged or of another format, and as
            ``as_columns``.
    """
    file_path = _existing(path)
    try:
        with file_path.open("rb") as file:
            major, _ = npy.read_magic(file)
            read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
            shape, _, dtype = read_header(file)
            _check_kind(dtype, f"'{file_path}'")
            # numpy takes the memory of the announced shape before it meets the end of the file
            if file.tell() + dtype.itemsize * np.prod(shape, dtype=object) > _size(file_path):
                raise EOFError("the file ends early")
            file.seek(0)
            values = npy.read_array(file, allow_pickle=False)
    except UserError:
        raise
    except UNREADABLE as error:
        _fail_to_read(file_path, "an .npy file, with numpy.save", error)
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


def check_pair(
    x: np.ndarray, y: np.ndarray, min_rows: int = MIN_ROWS, names: Sequence[str] | None = None
) -> None:
    """Check that x (N, dx) and y (N, dy), as from ``as_columns``, can be estimated from.

    Args:
        x, y: The pair.
        min_rows: Fewest rows that are accepted.
        names: Names of the dx + dy columns in messages; None counts them from 1.

    Raises:
        UserError: for unequal numbers of rows, too few of them, NaN or infinite values, columns
            that are constant, and a column of x that is one of y, where I(X; Y) is infinite.
    """
    if len(x) != len(y):
        raise UserError(
            f"x has {len(x)} rows and y has {len(y)}: row i of both is one draw, "
            "give as many of each"
        )
    if len(x) < max(min_rows, 1):
        raise UserError(f"there are {len(x)} rows, fewer than {min_rows}: give more of them")
    labels = [f"'{name}'" for name in names] if names else _numbered(x, y)
    values = np.concatenate([x, y], axis=1)
    _check_finite(values, labels)
    constant = [
        label for label, column in zip(labels, values.T, strict=True) if is_constant(column)
    ]
    if constant:
        raise UserError(f"constant over all rows are {', '.join(constant)}: leave them out")
    seen = {column.tobytes(): label for label, column in zip(labels, x.T, strict=False)}
    for label, column in zip(labels[x.shape[1] :], y.T, strict=True):
        if column.tobytes() in seen:
            raise UserError(
                f"{seen[column.tobytes()]} and {label} hold the same values, so that their mutual "
                "information has no bound: leave one out"
            )


def _existing(path: str | Path) -> Path:
    """The path of a file that exists and is not empty; ``~`` is the home folder."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"there is no file '{path}': check the path")
    if not _size(path):
        raise UserError(f"the file '{path}' is empty: check that it was written")
    return path


def _size(path: Path) -> int:
    return path.stat().st_size


def _fail_to_read(path: Path, form: str, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split())
    raise UserError(f"cannot read '{path}' ({reason}): save it as {form}") from error


def _check_kind(dtype: np.dtype, name: str) -> None:
    if dtype.kind in NOT_NUMBERS:
        raise UserError(f"{name} holds {NOT_NUMBERS[dtype.kind]}: save it as real numbers")


def _check_groups(x_columns: Sequence[str], y_columns: Sequence[str]) -> None:
    """Raise unless both groups name at least one column and none is named twice."""
    for group, columns in (("x", x_columns), ("y", y_columns)):
        if not columns:
            raise UserError(f"no column is given for {group}: name at least one")
        for name in columns:
            if list(columns).count(name) > 1:
                raise UserError(f"the column '{name}' is given twice for {group}: name it once")
    both = [name for name in x_columns if name in y_columns]
    if both:
        raise UserError(
            f"the column '{both[0]}' is given for x and for y, which makes their mutual "
            "information infinite: name it once"
        )


def _csv_rows(file: TextIO, path: Path, names: Sequence[str]) -> Iterator[list[float]]:
    """The values of the named columns, row by row."""
    reader = csv.reader(file, strict=True, skipinitialspace=True)
    rows = (row for row in reader if row)
    header = [name.strip() for name in next(rows, [])]
    for name in names:
        if name not in header:
            raise UserError(f"'{path}' has no column '{name}': choose from {', '.join(header)}")
        if header.count(name) > 1:
            raise UserError(f"'{path}' has several columns '{name}': rename all but one")
    places = [header.index(name) for name in names]
    for row in rows:
        if len(row) != len(header):
            raise UserError(
                f"line {reader.line_num} of '{path}' has {len(row)} cells and the first line has "
                f"{len(header)}: give every line as many, separated by commas"
            )
        try:
            yield [_number(row[place]) for place in places]
        except ValueError as error:
            place = next(place for place in places if not _is_number(row[place]))
            raise UserError(
                f"line {reader.line_num} of '{path}' holds {row[place][:40]!r} in the column "
                f"'{header[place]}': replace it with a number or leave the line out"
            ) from error


def _number(cell: str) -> float:
    """``float``, without the underscores that it allows between digits."""
    if "_" in cell:
        raise ValueError(cell)
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _numbered(x: np.ndarray, y: np.ndarray) -> list[str]:
    """Names by number of all columns of x and then of y, from "column 1 of x" on."""
    return [
        f"column {i + 1} of {name}" for name, z in (("x", x), ("y", y)) for i in range(z.shape[1])
    ]


def _check_finite(values: np.ndarray, labels: Sequence[str]) -> None:
    rows, columns = np.nonzero(~np.isfinite(values))
    if len(rows):
        raise UserError(
            f"{len(rows)} of {values.size} values are NaN or infinite, the first in row "
            f"{rows[0] + 1} (counted from 1) of {labels[columns[0]]}: fill in or leave out rows"
        )
