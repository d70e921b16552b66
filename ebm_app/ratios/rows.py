"""Rows of numbers: reading and validation.

No file is unpickled.
"""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import open_file
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame

#: Separators of a text table: the first of these that its first line contains
SEPARATORS = "\t", ";", ","
#: A column is discrete if more than this share of its rows, and this many, have one value
MAX_SHARE, MIN_REPEATS = 0.1, 5
#: Kinds of numpy types of complex numbers, durations, dates, text, bytes and objects
NOT_REAL = "cmMUSTVO"


class TextTable(NamedTuple):
    """Cells of a text table, without blanks around them.

    Attributes:
        names: names of the columns, from the first line or numbered from 0.
        rows: cells of each row.
        lines: number of the line of each row in the file, from 1.
        separator: an entry of ``SEPARATORS``.
    """

    names: list[str]
    rows: list[list[str]]
    lines: list[int]
    separator: str


def read_rows(
    path: str | Path, columns: Sequence[str] = (), header: int | None = 0
) -> "DataFrame":
    """Read rows (N, d) of numbers from a .npy or .parquet file, or from a text table with commas,
    semicolons or tabs, also compressed as .gz.

    With semicolons, a comma in a number is a decimal comma.

    Args:
        columns: columns of a table, by default all; others may hold text.
        header: index of the line with the names of the columns of a text table. None for a table
            without names, whose columns are numbered from 0.

    Raises:
        UserError: if the file is missing or damaged, a column is missing, a value is missing or
            not a finite number, rows have different lengths, or the header has numbers instead of
            names.
    """
    import pandas as pd  # takes half a second to import

    path, table = Path(path).expanduser(), None
    open_file(path).close()
    try:
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            table = pd.DataFrame(array).rename(columns=str)
        elif path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            text = read_text(path, header)
    except Exception as error:  # numpy and pandas raise a dozen exception types for damaged files
        raise UserError(
            f"Cannot read '{path}' ({shorten(error) or type(error).__name__}). Save numbers with "
            "numpy.save, or a .csv, .tsv or .parquet table with pandas."
        ) from error
    available, columns = list(text.names if table is None else table), list(map(str, columns))
    if not set(columns) <= set(available):
        names, wanted = (shorten(", ".join(map(str, part))) for part in (available, columns))
        raise UserError(f"Expected some of the columns {names} of '{path}', got {wanted}.")
    chosen = columns or available
    if table is None:
        check_names(text, chosen, path, header)
        return pd.DataFrame({name: text_column(text, name, path) for name in chosen})
    return pd.DataFrame(as_rows(table[chosen], f"'{path}'")[0], columns=chosen)


def read_text(path: Path, header: int | None) -> TextTable:
    """Read the cells of a text table.

    Raises:
        ValueError: if a line is blank, or has more or fewer cells than the first line.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        separator = next((each for each in SEPARATORS if each in first), ",")
        file.seek(0)
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
        rows, lines = [], []
        for row in reader:
            if not row or (rows and len(row) != len(rows[0])):
                wanted = f"{len(rows[0])} cells as on line 1" if rows else "the names of columns"
                got = f"{len(row)} cells" if row else "a blank line"
                raise ValueError(f"expected {wanted}, got {got} on line {reader.line_num}")
            rows.append([cell.strip() for cell in row])
            lines.append(reader.line_num)
    if not rows:
        raise ValueError("the file is empty")
    if header is None:
        return TextTable([str(index) for index in range(len(rows[0]))], rows, lines, separator)
    return TextTable(rows[0], rows[1:], lines[1:], separator)


def check_names(table: TextTable, chosen: Sequence[str], path: Path, header: int | None) -> None:
    """Raise a UserError if the names of the chosen columns of a text table are numbers, blank or
    repeated."""
    are_all = header is not None and list(chosen) == table.names
    # pandas writes 0, 1, ... for columns without names
    are_indices = table.names == [str(index) for index in range(len(table.names))]
    if are_all and not are_indices and all(map(is_number, table.names)):
        raise UserError(
            f"The first line of '{path}' has numbers instead of the names of columns. Add a line "
            "of names, use --no_header (in Python, header=None), or select columns by name."
        )
    if "" in chosen:
        raise UserError(
            f"A column of '{path}' has no name, as the index that pandas writes. Save the table "
            "without it (index=False), or select columns by name."
        )
    if repeated := [name for name in chosen if table.names.count(name) > 1]:
        raise UserError(f"'{path}' has several columns '{repeated[0]}'. Rename them.")


def text_column(table: TextTable, name: str, path: Path) -> np.ndarray:
    """Return the numbers (N,) of a column of a text table."""
    index = table.names.index(name)
    cells = [row[index] for row in table.rows]
    if table.separator == ";" and any("," in cell for cell in cells):
        # a point beside decimal commas separates thousands
        cells = [cell.replace(".", "?").replace(",", ".") for cell in cells]
    for row, cell in enumerate(cells):
        if not is_number(cell):
            raise UserError(
                f"Expected finite numbers in column '{name}' of '{path}', got "
                f"'{shorten(table.rows[row][index])}' on line {table.lines[row]}. Fill in or "
                "remove missing values, and encode classes and dates as numbers."
            )
    if not cells:
        raise UserError(f"Expected rows below the names of columns of '{path}', got none.")
    return np.array(cells, np.float64)


def is_number(cell: str) -> bool:
    """Return whether the text of a cell is a finite number."""
    try:
        return bool(np.isfinite(float(cell))) and "_" not in cell
    except ValueError:
        return False


def as_rows(values: Any, what: str) -> tuple[np.ndarray, Sequence[Any]]:
    """Convert an array, tensor or data frame (N,) or (N, d) of finite numbers to float64 (N, d).
    Also return the names of the columns, a ``range`` if they are numbered from 0.

    Raises:
        UserError: if the values are not real numbers, have another number of dimensions, or
            contain masked, NaN or infinite entries.
    """
    from sklearn.utils import check_array

    if isinstance(values, Tensor):
        values = as_tensor(values, what).cpu()
        values = values.to(torch.promote_types(values.dtype, torch.float64)).numpy(force=True)
    try:
        if np.ma.is_masked(values):
            raise ValueError(f"Input {what} contains masked values.")
        dtypes = values.dtypes if hasattr(values, "columns") else [np.asarray(values).dtype]
        if other := [str(dtype) for dtype in dtypes if dtype.kind in NOT_REAL]:
            raise ValueError(f"Input {what} has values of type {other[0]}.")
        rows = check_array(values, dtype=np.float64, ensure_2d=False, input_name=what)
        rows = rows.reshape(len(rows), -1)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"Expected rows (N, d) or one column (N,) of finite numbers for {what}. "
            f"{str(error).splitlines()[0]} Fill in or remove missing values, encode classes as "
            "numbers, and convert text with astype(float)."
        ) from None
    numbers = range(rows.shape[1])
    columns = list(map(str, getattr(values, "columns", numbers)))
    return rows, numbers if columns == list(map(str, numbers)) else columns


def check_columns(columns: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raise a UserError if the number of columns differs, or their names if both have names."""
    are_named = not any(isinstance(names, range) for names in (columns, expected))
    if len(columns) != len(expected) or (are_named and list(columns) != list(expected)):
        names, wanted = (shorten(", ".join(map(str, part))) for part in (columns, expected))
        raise UserError(
            f"Expected {len(expected)} columns ({wanted}), got {len(columns)} columns ({names})."
        )


def check_variation(rows: np.ndarray, columns: Sequence[Any], what: str) -> None:
    """Raise a UserError if a column is constant."""
    constant = [str(columns[index]) for index in np.flatnonzero(np.ptp(rows, 0) == 0)]
    if constant:
        raise UserError(f"Remove the constant columns of {what}: {', '.join(constant)}.")


def discrete_columns(rows: np.ndarray) -> list[int]:
    """Return the indices of the columns in which one value is repeated in more than a tenth of the
    rows (N, d), and in at least ``MIN_REPEATS``."""
    repeats = [np.unique(column, return_counts=True)[1].max() for column in rows.T]
    limit = max(MAX_SHARE * len(rows), MIN_REPEATS - 1)
    return [index for index, number in enumerate(repeats) if number > limit]
