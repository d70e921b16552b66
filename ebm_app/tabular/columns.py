r"""A user's own paired data: two ``.npy`` files, or two groups of columns of one CSV file.

Row i of x (N, dx) and row i of y (N, dy) are one draw of (X, Y); the rows are assumed independent.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ebm_app.io.errors import UserError
from ebm_app.tabular.csv_columns import read_csv_columns
from ebm_app.tabular.npy import column_labels, read_npy
from ebm_app.tabular.preprocessing import is_constant

MIN_ROWS = 10
#: x (N, dx) and y (N, dy)
PairedData = tuple[np.ndarray, np.ndarray]


class NamedColumns(np.ndarray):
    """An array (N, d) with the names of its columns, as a data frame has them; what is computed
    from it has none.

    >>> NamedColumns.of(np.eye(2), ["a", "b"]).columns
    ['a', 'b']
    """

    columns: list[str] | None = None

    @classmethod
    def of(cls, values: np.ndarray, names: Sequence[str]) -> "NamedColumns":
        """A view of ``values`` (N, d) with the d names."""
        named = values.view(cls)
        named.columns = list(names)
        return named


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
    path: str | Path, x_columns: Sequence[str], y_columns: Sequence[str], min_rows: int = MIN_ROWS
) -> PairedData:
    """Read and check x and y from the named columns of a CSV file (see ``read_csv_columns``).

    Returns:
        x (N, dx) and y (N, dy), float64, their columns in the order of the names, and named.

    Raises:
        UserError: for column names that are given twice or none, and as ``read_csv_columns`` and
            ``check_pair``.
    """
    _check_groups(x_columns, y_columns)
    values = read_csv_columns(path, [*x_columns, *y_columns])
    x, y = np.split(values, [len(x_columns)], axis=1)
    x, y = NamedColumns.of(x, x_columns), NamedColumns.of(y, y_columns)
    check_pair(x, y, min_rows)
    return x, y


def check_pair(
    x: np.ndarray, y: np.ndarray, min_rows: int = MIN_ROWS, names: Sequence[str] | None = None
) -> None:
    """Check that x (N, dx) and y (N, dy), as from ``as_columns``, can be estimated from.

    Args:
        x, y: The pair.
        min_rows: Fewest rows that are accepted.
        names: What messages call the dx + dy columns; None counts them from 1.

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
    labels = names or [*column_labels(x, "x"), *column_labels(y, "y")]
    values = np.concatenate([x, y], axis=1)
    check_finite(values, labels)
    check_varies(values, labels)
    seen = {column.tobytes(): label for label, column in zip(labels, x.T, strict=False)}
    for label, column in zip(labels[x.shape[1] :], y.T, strict=True):
        if column.tobytes() in seen:
            raise UserError(
                f"{seen[column.tobytes()]} and {label} hold the same values, so that their mutual "
                "information has no bound: leave one out"
            )


def check_finite(values: np.ndarray, labels: Sequence[str], what: str = "values") -> None:
    """Raise a UserError for NaN or infinite values (N, d), which a message calls ``what``, in
    columns of these names.

    >>> check_finite(np.eye(2), ["a", "b"])
    """
    rows, columns = np.nonzero(~np.isfinite(values))
    if len(rows):
        raise UserError(
            f"{len(rows)} of {values.size} {what} are NaN or infinite, the first in row "
            f"{rows[0] + 1} (counted from 1) of {labels[columns[0]]}: fill in or leave out rows"
        )


def check_varies(values: np.ndarray, labels: Sequence[str], where: str = "all rows") -> None:
    """Raise a UserError for columns of (N, d) that are constant over ``where``.

    >>> check_varies(np.eye(2), ["a", "b"])
    """
    constant = [
        label for label, column in zip(labels, values.T, strict=True) if is_constant(column)
    ]
    if constant:
        raise UserError(f"constant over {where} are {', '.join(constant)}: leave them out")


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
