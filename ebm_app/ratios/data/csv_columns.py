"""Named columns of numbers from a CSV file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ebm_app.errors import UserError
from ebm_app.ratios.data.npy import existing, fail_to_read


def read_csv_columns(path: str | Path, names: Sequence[str]) -> np.ndarray:
    """The named columns (N, len(names)) in float64, in the order of the names.

    The file is UTF-8, its cells are separated by commas, its first line names the columns and a
    point marks the decimals. Blank lines are left out; other columns may hold anything.

    Raises:
        UserError: for a missing or empty file or one that is not CSV, column names that are
            unknown or used twice, rows of unequal length, and a cell that is not a number.
    """
    file_path = existing(path)
    try:
        header, table = _read(file_path)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        fail_to_read(file_path, "comma-separated text in UTF-8 with as many cells a line", error)
    _check_header(file_path, header, names)
    # a cell in quotes may have line ends of its own
    line_ends = table.apply(lambda cells: cells.str.count("\n")).sum(axis=1)
    lines = table.index + 1 + line_ends.cumsum().astype(int)
    rows = table.dropna(how="all").iloc[1:]
    _check_lengths(file_path, rows, lines)
    cells = rows[[header.index(name) for name in names]]
    values = cells.apply(pd.to_numeric, errors="coerce").astype(np.float64)
    is_nan = cells.apply(lambda column: column.str.strip().str.lower().isin(["nan", "-nan"]))
    places = np.argwhere((values.isna() & ~is_nan.astype(bool)).to_numpy())
    if len(places):
        row, column = places[0]
        raise UserError(
            f"line {lines[cells.index[row]]} of '{file_path}' holds "
            f"{cells.iat[row, column][:40]!r} in the column '{names[column]}': replace it with a "
            "number or leave the line out"
        )
    return values.to_numpy()


def _read(path: Path) -> tuple[list[str], pd.DataFrame]:
    """Names of the columns, and all lines as text: the first one and blank ones too, a missing
    cell as NaN. Only pandas' Python engine distinguishes it from an empty one."""
    options = {
        "header": None,
        "dtype": str,
        "keep_default_na": False,
        "skipinitialspace": True,
        "engine": "python",
    }
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            first = pd.read_csv(file, nrows=1, **options)
        except pd.errors.EmptyDataError:
            return [], pd.DataFrame()
        header = [name.strip() for name in first.iloc[0]]
        file.seek(0)
        columns = range(len(header))
        table = pd.read_csv(
            file, names=columns, index_col=False, skip_blank_lines=False, **options
        )
    return header, table


def _check_header(path: Path, header: Sequence[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in header:
            raise UserError(f"'{path}' has no column '{name}': choose from {', '.join(header)}")
        if header.count(name) > 1:
            raise UserError(f"'{path}' has several columns '{name}': rename all but one")


def _check_lengths(path: Path, rows: pd.DataFrame, lines: pd.Series) -> None:
    is_short = rows.isna().any(axis=1)
    if is_short.any():
        first = is_short.idxmax()
        raise UserError(
            f"line {lines[first]} of '{path}' has {rows.loc[first].count()} cells and the first "
            f"line has {rows.shape[1]}: give every line as many, separated by commas"
        )
