"""A user's rows as columns of real numbers, from arrays, data frames, ``.npy`` and CSV files.

Nothing is ever unpickled.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import open_file
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame


def read_rows(path: str | Path, columns: Sequence[str] = ()) -> Any:
    """The rows of a file: of ``.npy`` all, (N, d) float64, and of ``.csv`` a data frame of the
    named columns (see ``read_csv``).

    Raises:
        UserError: for a file that is missing, damaged or of another format, and as ``Columns.of``.
    """
    path = Path(path).expanduser()
    open_file(path).close()
    if path.suffix.lower() == ".csv":
        return read_csv(path, columns)
    try:
        # a map takes no memory for a shape that the file does not hold
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises a dozen kinds of them for a damaged header
        _fail_to_read(path, "an .npy file, with numpy.save", error)
    return Columns.of(values, f"'{path}'").values


def read_csv(path: Path, names: Sequence[str]) -> "DataFrame":
    """The named columns of a CSV file, in the order of the names.

    The file is UTF-8, its cells are separated by commas, its first line names the columns and a
    point marks the decimals; other columns may hold anything.
    """
    import pandas as pd  # half a second to import, only for tables

    if not names:
        raise UserError(f"'{path}' is a table: name the columns to read from it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of lines that are longer
            form = {"encoding": "utf-8-sig", "skipinitialspace": True, "index_col": False}
            table = pd.read_csv(path, **form)
            header = pd.read_csv(path, header=None, nrows=1, dtype=str, **form).iloc[0]
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        _fail_to_read(path, "comma-separated text in UTF-8", error)
    table.columns = header.str.strip()
    for name in names:
        if names.count(name) > 1 or list(table.columns).count(name) > 1:
            raise UserError(f"the column '{name}' is given twice: name it once")
        if name not in table:
            known = shorten(", ".join(table.columns))
            raise UserError(f"'{path}' has no column '{name}': choose from {known}")
        if table[name].dtype.kind not in "biuf":
            row = int(pd.to_numeric(table[name], errors="coerce").isna().argmax())
            raise UserError(
                f"row {row + 1} of '{path}' holds {str(table[name][row])[:40]!r} in the column "
                f"'{name}': replace it with a number or leave the row out"
            )
    return table[list(names)]


#: distinct rows that a fold has at least
ROWS_PER_FOLD = 5
#: squares of larger values have no digits
LARGEST_VALUE = 1e100


class Columns(NamedTuple):
    """A user's rows: ``values`` (N, d) in float64, what messages call them, and the ``names`` of
    the columns of a data frame; an array has none."""

    values: np.ndarray
    what: str
    names: list[str] | None

    @classmethod
    def of(cls, values: Any, what: str) -> "Columns":
        """An array or data frame (N,) or (N, d) of real numbers, (N,) being one column, or columns
        as they are.

        Raises:
            UserError: for another kind of content or another number of dimensions.
        """
        if isinstance(values, Columns):
            return values
        names = getattr(values, "columns", None)
        for name, kind in zip(names, values.dtypes, strict=True) if names is not None else ():
            if getattr(kind, "kind", "O") not in "biuf":
                raise UserError(
                    f"the column '{name}' holds {kind}: encode it as numbers, a class by "
                    f"pandas.factorize(table[{str(name)!r}])[0]"
                )
        if isinstance(values, Tensor):
            values = as_tensor(values, what).cpu()
        try:
            values = np.asarray(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{what} is no array ({shorten(error)}): give numbers") from None
        if values.dtype.kind not in "biuf":
            raise UserError(f"{what} holds values of type {values.dtype}: give real numbers")
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or not values.size:
            raise UserError(
                f"{what} has the shape {values.shape}: give rows by columns (N, d) or one column "
                "(N,), and at least one row"
            )
        names = None if names is None else [str(name) for name in names]
        return cls(np.array(values, np.float64, order="C"), what, names)

    @property
    def labels(self) -> list[str]:
        """What messages call each column."""
        if self.names is None:
            return [f"column {n + 1} of {self.what}" for n in range(self.values.shape[1])]
        return [f"'{name}'" for name in self.names]

    def check_finite(self) -> None:
        """Raise a UserError for values that are NaN or infinite."""
        rows, columns = np.nonzero(~np.isfinite(self.values))
        if len(rows):
            raise UserError(
                f"{len(rows)} of {self.values.size} values of {self.what} are NaN or infinite, "
                f"the first in row {rows[0] + 1} (counted from 1) of {self.labels[columns[0]]}: "
                "fill in or leave out rows"
            )

    def check_vary(self) -> None:
        """Raise a UserError for values that are not finite, and for columns that are constant, or
        whose squares have no digits."""
        self.check_finite()
        spread = np.ptp(self.values / 2, axis=0) * 2
        wrong = (np.abs(self.values).max(0) > LARGEST_VALUE) | (spread < 1 / LARGEST_VALUE)
        names = [label for label, is_so in zip(self.labels, wrong, strict=True) if is_so]
        if names:
            raise UserError(
                "constant over all rows, or of values beyond 1e100 or closer than 1e-100, are "
                f"{', '.join(names)}: leave them out, or rescale them"
            )

    def check_same(self, other: "Columns") -> None:
        """Raise a UserError for columns that differ by number, name or order."""
        counts = self.values.shape[1], other.values.shape[1]
        if counts[0] != counts[1]:
            found = f"{self.what} has {counts[0]} columns and {other.what} has {counts[1]}"
            raise UserError(f"{found}: give both the same")
        if self.names and other.names and self.names != other.names:
            raise UserError(
                f"{self.what} has the columns {shorten(', '.join(self.names))} and {other.what} "
                f"has {shorten(', '.join(other.names))}, others or in another order: "
                "give both the same"
            )


def check_pair(x: Columns, y: Columns) -> None:
    """Raise a UserError for two sides that cannot be estimated from."""
    num_x, num_y = len(x.values), len(y.values)
    if num_x != num_y:
        raise UserError(
            f"{x.what} has {num_x} rows and {y.what} has {num_y}: row i of both is one draw"
        )
    x.check_vary()
    y.check_vary()
    seen = {column.tobytes(): label for label, column in zip(x.labels, x.values.T, strict=True)}
    for label, column in zip(y.labels, y.values.T, strict=True):
        if column.tobytes() in seen:
            raise UserError(
                f"{seen[column.tobytes()]} and {label} hold the same values, so that their mutual "
                "information has no bound: leave one out"
            )


def check_rows(num: int, what: str, num_folds: int, least_folds: int) -> None:
    """Raise a UserError where the folds have fewer than ``ROWS_PER_FOLD`` of the rows; it names
    the number of folds that would do, where that is no less than ``least_folds``."""
    if num < ROWS_PER_FOLD * num_folds:
        least = f"{ROWS_PER_FOLD * num_folds}, {ROWS_PER_FOLD} for each of {num_folds} folds"
        fewer = num // ROWS_PER_FOLD
        instead = f", or set num_folds to {fewer}" if fewer >= least_folds else ""
        raise UserError(f"{what}: give at least {least}{instead}")


def _fail_to_read(path: Path, form: str, error: Exception) -> NoReturn:
    reason = shorten(error) or type(error).__name__
    raise UserError(f"cannot read '{path}' ({reason}): save it as {form}") from error
