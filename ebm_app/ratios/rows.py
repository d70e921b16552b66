"""Conversion of arrays and files to data frames of real numbers.

No file is unpickled.
"""

import gzip
import re
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import Int, check_argument
from ebm_app.utils.files import open_file
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame, Index

#: Start of the names that pandas gives to columns without a name
NO_NAME = "Unnamed: "
#: Suffixes of tables with named columns
TABLES = {".csv", ".tsv", ".txt", ".parquet"}
NumFolds = Annotated[Int, Ge(3), Le(100)]
#: Min distinct rows of each fold
ROWS_PER_FOLD = 5
#: Max range of a column, and inverse of its min range; squares overflow beyond
LARGEST_RANGE = 1e100


def read_rows(path: str | Path, columns: Sequence[str] = ()) -> "DataFrame":
    """Read rows (N, d) of numbers from a file, as float64.

    A .npy file holds the rows. In an .npz file, ``columns`` names one array. In a .parquet file or
    a text table (.csv, .tsv or .txt in UTF-8 with a header, also compressed as .gz), ``columns``
    selects columns, by default all; others may hold text. Cells are separated by commas,
    semicolons or tabs. Decimal commas are supported unless commas separate cells.

    Raises:
        UserError: if the file is missing, damaged or of another format, a column is missing, or a
            value is not a finite number.
    """
    path = Path(path).expanduser()
    open_file(path).close()
    is_packed = path.suffix.lower() == ".gz"
    is_table = (path.with_suffix("") if is_packed else path).suffix.lower() in TABLES
    try:
        # a memory map does not allocate a shape that exceeds the file
        rows = _read_table(path) if is_table else np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises a dozen exception types for a damaged header
        form = "a text table in UTF-8" if is_table else "a .csv table, or numbers with numpy.save"
        reason = shorten(error) or type(error).__name__
        if "pickle" in reason:  # numpy suggests allow_pickle, which can run code
            reason = "it is not an array of numbers"
        raise UserError(f"Cannot read '{path}' ({reason}). Save it as {form}.") from error
    if isinstance(rows, np.ndarray):
        return as_columns(rows, f"'{path}'")
    if is_table and not columns and any(str(name).startswith(NO_NAME) for name in rows):
        raise UserError(
            f"A column of '{path}' has no name, as the index that pandas writes. Save the table "
            "without it (index=False), or select columns by name."
        )
    columns = columns or (list(rows) if is_table else ())
    kind = "columns" if is_table else "arrays"
    if not columns or not set(columns) <= set(rows) or (len(columns) > 1 and not is_table):
        available, names = (shorten(", ".join(group)) or "none" for group in (rows, columns))
        number = "some" if is_table else "one"
        raise UserError(f"Expected {number} of the {kind} {available} of '{path}', got {names}.")
    return as_columns(rows[list(columns)] if is_table else rows[columns[0]], f"'{path}'")


def _read_table(path: Path) -> "DataFrame":
    import pandas as pd  # takes half a second to import

    if path.suffix.lower() == ".parquet":
        return pd.read_parquet(path)
    reader = gzip.open if path.suffix.lower() == ".gz" else open
    with reader(path, "rt", encoding="utf-8-sig") as file:
        lines = [*islice(file, 20)]
    comment = "#" if lines and lines[0].startswith("#") else None
    header, *rows = [line for line in lines if line.strip() and line[0] != comment] or [""]
    separator = max(";\t,", key=re.sub('"[^"]*"', "", header).count)
    names = re.split(rf"[{separator}\s]+", header.strip())
    if all(map(_is_number, names)) and not all(map(str.isdigit, names)):  # years are names
        raise UserError(f"its first line has numbers instead of the names of columns: {header}")
    has_commas = separator != "," and re.search(r"\d,\d", "".join(rows))
    options = {"sep": separator, "decimal": "," if has_commas else ".", "comment": comment}
    options |= {"encoding": "utf-8-sig", "skipinitialspace": True, "index_col": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # lines that are too long
        return pd.read_csv(path, **options).rename(columns=str.strip)


def _is_number(text: str) -> bool:
    try:
        float(text.strip('"').replace(",", "."))
    except ValueError:
        return False
    return True


def as_columns(values: Any, what: str) -> "DataFrame":
    """Convert an array or data frame (N,) or (N, d) of real numbers to float64.

    Columns of arrays are numbered from 1 by a ``RangeIndex``.

    Raises:
        UserError: if the values are not real numbers, have another number of dimensions, or
            contain masked, NaN or infinite entries.
    """
    from pandas import DataFrame, to_numeric

    num_masked = np.ma.count_masked(values) if isinstance(values, np.ma.MaskedArray) else 0
    if num_masked:
        raise UserError(f"{num_masked} values of {what} are masked. Fill in or remove the rows.")
    if isinstance(values, Tensor):
        values = as_tensor(values, what).cpu()
        values = values.double() if values.is_floating_point() else values
    if not isinstance(values, DataFrame):
        try:
            values = DataFrame(np.asarray(values)).infer_objects()  # None is NaN
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"Expected rows (N, d) or one column (N,) for {what}: {shorten(error)}."
            ) from None
        values.columns = range(1, 1 + values.shape[1])
    if values.empty:
        raise UserError(f"{what} needs at least one row and column, got shape {values.shape}.")
    for name, column in values.items():
        if getattr(column.dtype, "kind", "O") not in "biuf":
            row = to_numeric(column.astype(str), "coerce").isna().argmax()
            raise UserError(
                f"Column '{name}' of {what} has type {column.dtype}, with {column.iloc[row]!r} in "
                f"row {row + 1}. Use real numbers; encode classes with "
                "pandas.factorize(column)[0]."
            )
    numbers = values.to_numpy(np.float64, na_value=np.nan)
    rows, columns = np.nonzero(~np.isfinite(numbers))
    if len(rows):
        raise UserError(
            f"{len(rows)} of {numbers.size} values of {what} are missing (NaN) or infinite, the "
            f"first in row {rows[0] + 1} (counted from 1) of column "
            f"'{values.columns[columns[0]]}'. Fill in or remove the rows."
        )
    return DataFrame(numbers, columns=values.columns)


def check_columns(columns: "Index", expected: "Index") -> None:
    """Raise a UserError if the number of columns differs, or their names if both have names."""
    from pandas import RangeIndex

    are_named = not any(isinstance(index, RangeIndex) for index in (columns, expected))
    if len(columns) != len(expected) or (are_named and list(columns) != list(expected)):
        names, wanted = (shorten(", ".join(map(str, index))) for index in (columns, expected))
        raise UserError(
            f"Expected {len(expected)} columns ({wanted}), got {len(columns)} columns ({names})."
        )


def assign_folds(
    rows: "DataFrame", what: str, num_folds: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the fold (N,) and the index of the observation (N,) of each row.

    Equal rows are one observation and share a fold. If less than half of the rows are distinct, as
    for discrete columns, each row counts as its own observation.

    Raises:
        UserError: if there are fewer than 3 folds, a fold has fewer than ``ROWS_PER_FOLD``
            distinct rows, or a column is constant or has a range beyond ``LARGEST_RANGE``.
    """
    num_folds = check_argument(NumFolds, "num_folds", num_folds)
    values = rows.to_numpy()
    with np.errstate(over="ignore"):
        spread = np.ptp(values, axis=0)
    wrong = rows.columns[~((spread >= 1 / LARGEST_RANGE) & (spread <= LARGEST_RANGE))]
    if len(wrong):
        raise UserError(
            f"Columns of {what} are constant or have a range beyond {LARGEST_RANGE:g}: "
            f"{', '.join(map(str, wrong))}. Remove or rescale them."
        )
    group = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    if 2 * (group.max() + 1) < len(values):
        group = np.arange(len(values))
    num = int(group.max()) + 1
    if num < ROWS_PER_FOLD * num_folds:
        raise UserError(
            f"{what} has {num} distinct rows. Use at least {ROWS_PER_FOLD} for each of "
            f"{num_folds} folds."
        )
    group = torch.from_numpy(group)
    return (torch.randperm(num, generator=generator) % num_folds)[group], group
