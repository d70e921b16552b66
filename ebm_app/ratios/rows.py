"""Rows of a user's data as columns of real numbers, from arrays, data frames, .npy and CSV files.

No file is unpickled.
"""

import warnings
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

#: Min distinct rows of each fold
ROWS_PER_FOLD = 5
#: Max absolute value, and inverse of the min range of a column: squares overflow beyond
LARGEST_VALUE = 1e100


def read_rows(path: str | Path, columns: Sequence[str] = ()) -> Any:
    """Read rows from a file: (N, d) float64 from .npy, a data frame of the named columns from CSV.

    Raises:
        UserError: if the file is missing, damaged or of another format, or a column is missing.
    """
    path = Path(path).expanduser()
    open_file(path).close()
    if path.suffix.lower() == ".csv":
        return read_csv(path, columns)
    try:
        # a memory map allocates nothing for a shape that the file does not hold
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises a dozen exception types for a damaged header
        raise _unreadable(path, "an .npy file, with numpy.save", error) from error
    return Columns.of(values, f"'{path}'").values


def read_csv(path: Path, names: Sequence[str]) -> "DataFrame":
    """Read the named columns of a CSV file, in the order of the names.

    The file is UTF-8 with commas between cells, a header line and decimal points. Columns that are
    not named may hold text.
    """
    import pandas as pd  # takes half a second to import

    if not names:
        raise UserError(f"'{path}' is a table. Name the columns to read.")
    options = {"encoding": "utf-8-sig", "skipinitialspace": True, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # lines that are too long
            table = pd.read_csv(path, **options)
            header = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0]
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        raise _unreadable(path, "comma-separated text in UTF-8", error) from error
    table.columns = header.str.strip()
    for name in names:
        if names.count(name) > 1 or list(table.columns).count(name) > 1:
            raise UserError(f"Column '{name}' occurs twice. Name it once.")
        if name not in table:
            known = shorten(", ".join(table.columns))
            raise UserError(f"'{path}' has no column '{name}'. Choose from {known}.")
        if table[name].dtype.kind not in "biuf":
            row = int(pd.to_numeric(table[name], errors="coerce").isna().argmax())
            raise UserError(
                f"Row {row + 1} of '{path}' has {str(table[name][row])[:40]!r} in column "
                f"'{name}'. Replace it with a number or remove the row."
            )
    return table[list(names)]


class Columns(NamedTuple):
    """Rows ``values`` (N, d) float64, their name in messages, and a label of each column."""

    values: np.ndarray
    what: str
    labels: list[str]

    @classmethod
    def of(cls, values: Any, what: str) -> "Columns":
        """Convert an array or data frame (N,) or (N, d) of real numbers.

        Raises:
            UserError: if the values are not real numbers, have another number of dimensions, or
                contain masked, NaN or infinite entries.
        """
        names = getattr(values, "columns", None)
        for name, kind in zip(names, values.dtypes, strict=True) if names is not None else ():
            if getattr(kind, "kind", "O") not in "biuf":
                raise UserError(
                    f"Column '{name}' has type {kind}. Encode it as numbers, a class by "
                    f"pandas.factorize(table[{str(name)!r}])[0]."
                )
        missing = np.ma.count_masked(values) if isinstance(values, np.ma.MaskedArray) else 0
        if missing:
            raise UserError(f"{missing} values of {what} are masked. Fill in or remove the rows.")
        if isinstance(values, Tensor):
            values = as_tensor(values, what).cpu()
        try:
            values = np.asarray(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{what} is not an array ({shorten(error)}). Give numbers.") from None
        if values.dtype.kind not in "biuf":
            raise UserError(f"{what} has values of type {values.dtype}. Give real numbers.")
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or not values.size:
            raise UserError(
                f"Expected rows (N, d) or one column (N,) for {what}, got shape {values.shape}."
            )
        numbers = range(1, values.shape[1] + 1)
        labels = [f"column {n} of {what}" for n in numbers]
        labels = labels if names is None else [f"'{name}'" for name in names]
        columns = cls(np.array(values, np.float64, order="C"), what, labels)
        columns._check_finite()
        return columns

    def _check_finite(self) -> None:
        rows, columns = np.nonzero(~np.isfinite(self.values))
        if len(rows):
            raise UserError(
                f"{len(rows)} of {self.values.size} values of {self.what} are missing (NaN) or "
                f"infinite, the first in row {rows[0] + 1} (counted from 1) of "
                f"{self.labels[columns[0]]}. Fill in or remove the rows."
            )

    def check_range(self) -> None:
        """Raise a UserError for constant columns and for values whose squares overflow."""
        spread = np.ptp(self.values / 2, axis=0) * 2
        wrong = (np.abs(self.values).max(0) > LARGEST_VALUE) | (spread < 1 / LARGEST_VALUE)
        names = [label for label, is_wrong in zip(self.labels, wrong, strict=True) if is_wrong]
        if names:
            raise UserError(
                f"Constant columns, or values beyond 1e100: {', '.join(names)}. Remove or rescale "
                "these columns."
            )

    def check_same(self, other: "Columns") -> None:
        """Raise a UserError unless both have the same columns."""
        counts = self.values.shape[1], other.values.shape[1]
        if counts[0] != counts[1]:
            raise UserError(
                f"{self.what} has {counts[0]} columns and {other.what} has {counts[1]}. Give the "
                "same columns in both."
            )
        are_named = all(part.labels[0].startswith("'") for part in (self, other))
        if are_named and self.labels != other.labels:
            raise UserError(
                f"{self.what} has the columns {shorten(', '.join(self.labels))} and {other.what} "
                f"has {shorten(', '.join(other.labels))}. Give the same columns in both."
            )


def assign_folds(
    columns: Columns, num_folds: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the fold (N,) and the number of the distinct row (N,) of each row.

    Copies of a row are one observation and share a fold. If less than half of the rows are
    distinct, as for discrete columns, each row counts as its own observation.

    Raises:
        UserError: if a fold has fewer than ``ROWS_PER_FOLD`` distinct rows, or a column is
            constant.
    """
    columns.check_range()
    values, what = columns.values, columns.what
    group = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    if 2 * (group.max() + 1) < len(values):
        group = np.arange(len(values))
    num = int(group.max()) + 1
    if num < ROWS_PER_FOLD * num_folds:
        least = f"{ROWS_PER_FOLD * num_folds}, {ROWS_PER_FOLD} for each of {num_folds} folds"
        raise UserError(f"{what} has {num} distinct rows. Give at least {least}.")
    group = torch.from_numpy(group)
    return (torch.randperm(num, generator=generator) % num_folds)[group], group


def _unreadable(path: Path, form: str, error: Exception) -> UserError:
    reason = shorten(error) or type(error).__name__
    return UserError(f"Cannot read '{path}' ({reason}). Save it as {form}.")
