"""Rows of numbers: reading, validation, and independent observations.

No file is unpickled.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import open_file
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame, Index

#: Min independent observations per fold
ROWS_PER_FOLD = 5
#: From this many distinct rows on, equal rows may be copies
MIN_IDENTIFIED = 20
#: Difference of copies that were rounded or jittered, as a fraction of the spread of a column
PRECISION = 1e-6
#: Fraction of the range of a coordinate by which new rows may be outside
SLACK = 0.1


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
    return as_table(table[list(columns)] if columns else table, f"'{path}'")


def as_table(values: Any, what: str) -> "DataFrame":
    """Convert an array, tensor or data frame (N,) or (N, d) of finite numbers to float64.

    Columns of arrays are numbered by a ``RangeIndex``.

    Raises:
        UserError: if the values are not real numbers, have another number of dimensions, or
            contain masked, NaN or infinite entries.
    """
    from pandas import DataFrame
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
    return DataFrame(rows, columns=values.columns if isinstance(values, DataFrame) else None)


def check_columns(columns: "Index", expected: "Index") -> None:
    """Raise a UserError if the number of columns differs, or their names if both have names."""
    from pandas import RangeIndex

    are_named = not any(isinstance(index, RangeIndex) for index in (columns, expected))
    if len(columns) != len(expected) or (are_named and list(columns) != list(expected)):
        names, wanted = (shorten(", ".join(map(str, index))) for index in (columns, expected))
        raise UserError(
            f"Expected {len(expected)} columns ({wanted}), got {len(columns)} columns ({names})."
        )


def observations(rows: np.ndarray) -> np.ndarray:
    """Return the index of the independent observation (N,) of each row (N, D).

    Rows that agree to ``PRECISION`` of the spread of the columns are one observation if they are
    copies, and different ones if they are draws of discrete variables. They are copies if there
    are at least ``MIN_IDENTIFIED`` and sqrt(N) distinct rows and a column has nearly as many
    distinct values, so that it identifies the row, or if a number divides the count of each of
    ``MIN_IDENTIFIED`` rows. A single column cannot show the former: its equal values are copies if
    more than half of them are distinct. A row that is far more frequent than the others, such as
    the zeros of a rectified variable, is an atom whose repetitions are draws.
    """
    values, group = _near_copies(rows)
    counts = np.bincount(group)
    num, every = len(counts), np.arange(len(rows))
    if rows.shape[1] == 1:
        are_copies = 2 * num > len(rows)
    else:
        distinct = max(len(np.unique(column)) for column in values.T)
        are_copies = num >= max(MIN_IDENTIFIED, len(rows) ** 0.5) and distinct > 0.9 * num
    if not are_copies and (num < MIN_IDENTIFIED or np.gcd.reduce(counts) == 1):
        return every
    is_atom = (counts > max(0.05 * len(rows), 3 * np.median(counts)))[group]
    return np.unique(np.where(is_atom, num + every, group), return_inverse=True)[1]


def _near_copies(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows rounded to ``PRECISION`` of the spread of each column, and the index (N,) of
    each distinct one. They are not rounded if few agree, which is a coincidence."""
    distance = np.abs(rows - np.median(rows, 0))
    spread = np.median(distance, 0)
    spread = np.where(spread > 0, spread, distance.mean(0))
    spread = np.where(spread > 0, spread, 1.0)
    rounded = np.round((rows - np.median(rows, 0)) / (PRECISION * spread))
    groups = [
        np.unique(values, axis=0, return_inverse=True)[1].reshape(-1) for values in (rows, rounded)
    ]
    exact, near = (int(group.max()) + 1 for group in groups)
    return (rounded, groups[1]) if near < 0.98 * exact else (rows, groups[0])


def check_variation(rows: "DataFrame", what: str) -> None:
    """Raise a UserError if a column is constant."""
    constant = [str(name) for name, column in rows.items() if column.nunique() == 1]
    if constant:
        raise UserError(f"Remove the constant columns of {what}: {', '.join(constant)}.")


def assign_folds(
    rows: "DataFrame", what: str, num_folds: int, numbers: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the fold (N,) and the index of the observation (N,) of each row. Rows of an
    observation share a fold.

    Raises:
        UserError: if a fold has fewer than ``ROWS_PER_FOLD`` observations, or a column is
            constant.
    """
    check_variation(rows, what)
    group = observations(rows.to_numpy())
    num = int(group.max()) + 1
    if num < ROWS_PER_FOLD * num_folds:
        raise UserError(
            f"{what} has {num} distinct rows. Use at least {ROWS_PER_FOLD} for each of "
            f"{num_folds} folds."
        )
    return (numbers.permutation(num) % num_folds)[group], group


class RowRange(NamedTuple):
    """Range of standardised rows: smallest and largest coordinates ``low`` and ``high`` (2D,)
    along the columns and the principal ``axes`` (D, D)."""

    axes: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> "RowRange":
        """Return the range of rows (N, D)."""
        axes = np.linalg.eigh(rows.T @ rows / len(rows)).eigenvectors
        coordinates = np.concatenate([rows, rows @ axes], 1)
        return cls(axes, coordinates.min(0), coordinates.max(0))

    def is_outside(self, rows: np.ndarray) -> np.ndarray:
        """Return whether a coordinate of rows (n, D) is outside by more than ``SLACK`` of its
        range: (n,) bool."""
        coordinates = np.concatenate([rows, rows @ self.axes], 1)
        beyond = np.maximum(self.low - coordinates, coordinates - self.high)
        return (beyond > SLACK * (self.high - self.low) + 1e-6).any(1)  # rounding errors


def match_copies(
    samples: Sequence[np.ndarray], folds: Sequence[np.ndarray], groups: Sequence[np.ndarray]
) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
    """Return the folds and the observations of two samples. In the second sample, rows that are
    copies of rows of the first one have the fold and the observation of these."""
    index = observations(np.concatenate(samples))
    first, second = np.split(index, [len(samples[0])])
    rows = np.full(len(index), -1)
    rows[first] = np.arange(len(first))
    rows = rows[second]
    return tuple(
        (values, np.where(rows < 0, others, values[rows])) for values, others in (folds, groups)
    )


def describe_copies(rows: np.ndarray, group: np.ndarray, what: str) -> tuple[str, ...]:
    """Return a warning if rows (N, D) are repeated and their observations ``group`` (N,) may not
    be those that the user means, as a tuple of at most one sentence."""
    num = len(np.unique(group))
    if num < 0.98 * len(rows):
        return (f"{what} has {num} distinct rows among {len(rows)}. Copies count once.",)
    _, counts = np.unique(rows, axis=0, return_counts=True)
    size = math.prod(len(np.unique(column)) for column in rows.T)
    is_sparse = MIN_IDENTIFIED <= len(counts) < 0.9 * size
    if is_sparse and np.median(counts) > 1 and np.mean(counts == 1) < 0.05:
        return (
            f"{what} has {len(counts)} distinct rows among {len(rows)}, which count as draws of "
            "discrete columns. If they are copies, pass each row once.",
        )
    return ()
