"""A user's rows as columns of real numbers, from arrays, data frames, ``.npy`` and CSV files.

Nothing is ever unpickled.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened

if TYPE_CHECKING:
    from pandas import DataFrame


def read_npy(path: str | Path) -> np.ndarray:
    """The array of an ``.npy`` file as (N, d) in float64.

    Raises:
        UserError: for a file that is missing, damaged or of another format, and as ``as_columns``.
    """
    path = Path(path).expanduser()
    try:
        # a map takes no memory for a shape that the file does not hold
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises a dozen kinds of them for a damaged header
        _fail_to_read(path, "an .npy file, with numpy.save", error)
    if not isinstance(values, np.ndarray):
        raise UserError(f"'{path}' holds several arrays: save one, with numpy.save")
    return as_columns(values, f"'{path}'")


def read_csv(path: str | Path, names: Sequence[str]) -> "DataFrame":
    """The named columns of a CSV file, in the order of the names.

    The file is UTF-8, its cells are separated by commas, its first line names the columns and a
    point marks the decimals; other columns may hold anything.

    Raises:
        UserError: for a file that is missing or no CSV, names that are unknown, or in the file
            twice, and a column with a cell that is not a number.
    """
    import pandas as pd  # half a second to import, only for tables

    path = Path(path).expanduser()
    form = {"encoding": "utf-8-sig", "skipinitialspace": True}
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, **form).iloc[0]
        table = pd.read_csv(path, **form)
        if not isinstance(table.index, pd.RangeIndex):
            raise ValueError("there are lines with more cells than the first one")
    except (OSError, ValueError) as error:
        _fail_to_read(path, "comma-separated text in UTF-8", error)
    known = [str(name).strip() for name in header]
    for name in names:
        if known.count(name) != 1:
            found = "several columns" if name in known else "no column"
            raise UserError(
                f"'{path}' has {found} '{name}': choose from {shortened(', '.join(known))}"
            )
    table = table.iloc[:, [known.index(name) for name in names]].set_axis(list(names), axis=1)
    for name in names:
        if table[name].dtype.kind not in "biuf":
            row = int(pd.to_numeric(table[name], errors="coerce").isna().argmax())
            raise UserError(
                f"row {row + 1} of '{path}' holds {str(table[name][row])[:40]!r} in the column "
                f"'{name}': replace it with a number or leave the row out"
            )
    return table


def read_csv_pair(
    path: str | Path, x_columns: Sequence[str], y_columns: Sequence[str]
) -> tuple["DataFrame", "DataFrame"]:
    """X and Y from the named columns of a CSV file (see ``read_csv``).

    Raises:
        UserError: for column names that are given twice or none, and as ``read_csv``.
    """
    names = [*x_columns, *y_columns]
    if not (x_columns and y_columns):
        raise UserError("a side has no columns: name at least one for x and one for y")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"the column '{twice[0]}' is given twice: name it once")
    table = read_csv(path, names)
    return table[list(x_columns)], table[list(y_columns)]


def as_columns(values: Any, name: str) -> np.ndarray:
    """An array or data frame (N,) or (N, d) of real numbers as (N, d) in float64; (N,) is one
    column. A message calls them ``name``.

    >>> as_columns([True, False], "x").shape
    (2, 1)

    Raises:
        UserError: for another kind of content or another number of dimensions.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "biuf":
        raise UserError(f"{name} holds values of type {values.dtype}: give real numbers")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not values.shape[1]:
        raise UserError(
            f"{name} has the shape {values.shape}: give rows by columns (N, d) or one column (N,)"
        )
    return np.array(values, np.float64)


def columns_of(values: Any) -> list[str] | int:
    """The names of the columns of a data frame, or the number of those of an array.

    >>> columns_of(np.zeros((3, 2)))
    2
    """
    names = getattr(values, "columns", None)
    if names is not None:
        return [str(name) for name in names]
    shape = np.shape(values)
    return shape[1] if len(shape) > 1 else 1


def column_labels(values: Any, name: str) -> list[str]:
    """What messages call the columns of an array, or of a data frame, which names them.

    >>> column_labels(np.zeros((3, 2)), "x")
    ['column 1 of x', 'column 2 of x']
    """
    columns = columns_of(values)
    if isinstance(columns, int):
        return [f"column {number + 1} of {name}" for number in range(columns)]
    return [f"'{column}'" for column in columns]


def check_columns(
    values: np.ndarray, labels: Sequence[str], what: str = "values", vary: bool = True
) -> None:
    """Raise a UserError for NaN or infinite values (N, d), which a message calls ``what``, in
    columns of these names, and if they must ``vary`` for constant ones.

    >>> check_columns(np.eye(2), ["a", "b"])
    """
    rows, columns = np.nonzero(~np.isfinite(values))
    if len(rows):
        raise UserError(
            f"{len(rows)} of {values.size} {what} are NaN or infinite, the first in row "
            f"{rows[0] + 1} (counted from 1) of {labels[columns[0]]}: fill in or leave out rows"
        )
    constant = (values == values[:1]).all(0) & vary
    if constant.any():
        names = ", ".join(label for label, is_so in zip(labels, constant, strict=True) if is_so)
        raise UserError(f"constant over all {what} are {names}: leave them out")


def check_same_columns(
    first: list[str] | int, second: list[str] | int, names: tuple[str, str]
) -> None:
    """Raise a UserError for two data whose ``columns_of`` differ by number, name or order; an
    array has no names to compare. A message calls the two by ``names``.

    >>> check_same_columns(["a", "b"], 2, ("x0", "x1"))
    """
    counts = [part if isinstance(part, int) else len(part) for part in (first, second)]
    if counts[0] != counts[1]:
        raise UserError(
            f"{names[0]} has {counts[0]} columns and {names[1]} has {counts[1]}: give both the "
            "same columns"
        )
    if isinstance(first, list) and isinstance(second, list) and first != second:
        raise UserError(
            f"{names[0]} has the columns {shortened(', '.join(first))} and {names[1]} has "
            f"{shortened(', '.join(second))}: give both the same, in the same order"
        )


def _fail_to_read(path: Path, form: str, error: Exception) -> NoReturn:
    reason = shortened(error) or type(error).__name__
    raise UserError(f"cannot read '{path}' ({reason}): save it as {form}") from error
