"""Named columns of numbers from a CSV file."""

import csv
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.tabular.npy import existing, fail_to_read


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
        with file_path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]  # the last line of each
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail_to_read(file_path, "comma-separated text in UTF-8", error)
    header = [name.strip() for name in rows[0][1]] if rows else []
    for name in names:
        if name not in header:
            raise UserError(
                f"'{path}' has no column '{name}': choose from {shortened(', '.join(header))}"
            )
        if header.count(name) > 1:
            raise UserError(f"'{path}' has several columns '{name}': rename all but one")
    lines, cells = zip(*rows[1:], strict=True) if rows[1:] else ((), ())
    for line, row in zip(lines, cells, strict=True):
        if len(row) != len(header):
            raise UserError(
                f"line {line} of '{path}' has {len(row)} cells and the first line has "
                f"{len(header)}: give every line as many, separated by commas"
            )
    columns = [header.index(name) for name in names]
    values = np.empty((len(cells), len(names)))
    for (row, line), (place, column) in product(enumerate(lines), enumerate(columns)):
        value = _number(cells[row][column])
        if value is None:
            raise UserError(
                f"line {line} of '{path}' holds {cells[row][column][:40]!r} in the column "
                f"'{names[place]}': replace it with a number or leave the line out"
            )
        values[row, place] = value
    return values


def _number(text: str) -> float | None:
    """The number in a cell to its last digit, or None."""
    if "_" in text:  # Python's own way to group digits
        return None
    try:
        return float(text)
    except ValueError:
        return None
