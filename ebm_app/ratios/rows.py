"""Rows of numbers: reading and validation.

No file is unpickled.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import open_file
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame


def read_rows(
    path: str | Path, columns: Sequence[str] = (), header: int | None = 0
) -> "DataFrame":
    """Read rows (N, d) of numbers from a .npy file, or from a .parquet file or a text table: .csv
    with commas, .tsv with tabs, also compressed as .gz.

    Args:
        columns: columns of a table, by default all; others may hold text.
        header: index of the line with the names of the columns of a text table. None for a table
            without names, whose columns are numbered from 0.

    Raises:
        UserError: if the file is missing or damaged, a column is missing, a value is not a finite
            number, or the header has numbers instead of names.
    """
    import pandas as pd  # takes half a second to import

    path = Path(path).expanduser()
    open_file(path).close()
    has_numbers_first = False
    try:
        if path.suffix == ".npy":
            table = pd.DataFrame(np.load(path, mmap_mode="r", allow_pickle=False))
        elif path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            read = partial(pd.read_csv, path, sep="\t" if ".tsv" in path.suffixes else ",")
            table = read(header=header).rename(columns=str)
            first = read(header=None, nrows=1)
            is_numeric = all(map(pd.api.types.is_numeric_dtype, first.dtypes))
            # pandas writes 0, 1, ... for columns without names
            has_numbers_first = is_numeric and [*first.iloc[0]] != [*first]
    except Exception as error:  # numpy and pandas raise a dozen exception types for damaged files
        raise UserError(
            f"Cannot read '{path}' ({shorten(error) or type(error).__name__}). Save numbers with "
            "numpy.save, or a .csv, .tsv or .parquet table with pandas."
        ) from error
    if has_numbers_first and header is not None and not columns:
        raise UserError(
            f"The first line of '{path}' has numbers instead of the names of columns. Add a line "
            "of names, use --no_header (in Python, header=None), or select columns by name."
        )
    if not set(columns) <= set(table):
        available, names = (shorten(", ".join(map(str, part))) for part in (table, columns))
        raise UserError(f"Expected some of the columns {available} of '{path}', got {names}.")
    if not columns and any(str(name).startswith("Unnamed: ") for name in table):
        raise UserError(
            f"A column of '{path}' has no name, as the index that pandas writes. Save the table "
            "without it (index=False), or select columns by name."
        )
    table = table[list(columns)] if columns else table
    return pd.DataFrame(as_rows(table, f"'{path}'")[0], columns=table.columns)


def as_rows(values: Any, what: str) -> tuple[np.ndarray, Sequence[Any]]:
    """Convert an array, tensor or data frame (N,) or (N, d) of finite numbers to float64 (N, d).
    Also return the names of the columns, a ``range`` if they are numbered from 0.

    Raises:
        UserError: if the values are not real numbers, have another number of dimensions, or
            contain masked, NaN or infinite entries.
    """
    from sklearn.utils import check_array

    if isinstance(values, Tensor):
        values = as_tensor(values, what).cpu().double().numpy()
    try:
        if np.ma.is_masked(values):
            raise ValueError(f"Input {what} contains masked values.")
        rows = check_array(values, dtype=np.float64, ensure_2d=False, input_name=what)
        rows = rows.reshape(len(rows), -1)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"Expected rows (N, d) or one column (N,) of finite numbers for {what}. "
            f"{str(error).splitlines()[0]} Fill in or remove missing values, and encode classes "
            "as numbers."
        ) from None
    numbers = range(rows.shape[1])
    columns = list(getattr(values, "columns", numbers))
    return rows, numbers if columns == list(numbers) else columns


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
