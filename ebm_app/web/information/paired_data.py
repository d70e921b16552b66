"""A visitor's paired data: two .npy files, or columns of a CSV file, or draws of a known
distribution."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.io.registry import choose
from ebm_app.tabular.columns import read_csv_pair, read_npy
from ebm_app.tabular.known import EXAMPLES

from ..ranges import whole
from ..shared import MAX_SEED

#: fewer rows leave too little to learn from; more rows or columns would keep others waiting
MIN_ROWS, MAX_ROWS, MAX_COLUMNS, MAX_LISTED = 100, 20_000, 64, 500


class PairedFiles(NamedTuple):
    """Where a visitor's data are: two .npy files, or one CSV file and the names of its columns."""

    x: str | None = None
    y: str | None = None
    csv: str | None = None
    x_columns: Sequence[str] = ()
    y_columns: Sequence[str] = ()


def described(files: PairedFiles) -> str:
    """The names of the files, and of the columns of a table.

    >>> described(PairedFiles("uploads/a.npy", "uploads/b.npy"))
    'a.npy and b.npy'
    >>> described(PairedFiles(csv="t.csv", x_columns=["a", "b"], y_columns=["c"]))
    't.csv, X = a, b and Y = c'
    """
    if files.csv:
        x, y = (shortened(", ".join(names)) for names in (files.x_columns, files.y_columns))
        return f"{Path(files.csv).name}, X = {x} and Y = {y}"
    return f"{Path(files.x).name} and {Path(files.y).name}"


def read(files: PairedFiles) -> tuple[Any, Any]:
    """x (N, dx) and y (N, dy), float64.

    Raises:
        UserError: for files that do not belong together, as the readers say but without the
            folders of the server, and for more data than the page takes.
    """
    if files.csv and (files.x or files.y):
        raise UserError("there are .npy files and a CSV file: take one or the other away")
    if not files.csv and not (files.x and files.y):
        raise UserError("there are no data for both X and Y: upload two .npy files or a CSV file")
    try:
        x, y = _read(files)
    except UserError as error:
        raise UserError(_without_folders(str(error), files)) from None
    if len(x) > MAX_ROWS:
        raise UserError(f"there are {len(x)} rows, more than {MAX_ROWS}: upload a part of them")
    columns = x.shape[1] + y.shape[1]
    if columns > MAX_COLUMNS:
        raise UserError(f"there are {columns} columns, more than {MAX_COLUMNS}: leave some out")
    return x, y


def _read(files: PairedFiles) -> tuple[Any, Any]:
    if files.csv:
        return read_csv_pair(files.csv, files.x_columns, files.y_columns)
    return read_npy(files.x), read_npy(files.y)


def _without_folders(message: str, files: PairedFiles) -> str:
    for path in filter(None, files[:3]):
        message = message.replace(str(path), Path(path).name)
    return message


def draw_example(task: str, num_rows: int, seed: int, folder: Path) -> tuple[str, str, str]:
    """Draws of a distribution of known mutual information as two .npy files in a folder: their
    paths, and a sentence with the true value.

    Raises:
        UserError: for an unknown task or numbers out of range.
    """
    distribution = EXAMPLES[choose("task", task, EXAMPLES)]
    num_rows = whole("the number of rows", num_rows, MIN_ROWS, MAX_ROWS)
    generator = torch.Generator().manual_seed(whole("the seed", seed, 0, MAX_SEED))
    paths = [folder / f"{task}_{name}.npy" for name in ("x", "y")]
    for path, part in zip(paths, distribution.draw(num_rows, generator), strict=True):
        np.save(path, part.numpy(), allow_pickle=False)
    return str(paths[0]), str(paths[1]), f"{task}: {distribution.mutual_information:.4f} nats"


def examples() -> list[str]:
    """The tasks that are small enough for the page."""
    return [name for name, task in EXAMPLES.items() if task.dim_x + task.dim_y <= MAX_COLUMNS]


def column_names(path: str | None) -> list[str]:
    """The names in the first line of a CSV file; none for no file, or one that is no CSV, which
    is explained when it is estimated from.

    Raises:
        UserError: for more names than can be listed.
    """
    if not path:
        return []
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            names = next(filter(None, csv.reader(file, skipinitialspace=True)), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    if len(names) > MAX_LISTED:
        raise UserError(f"there are {len(names)} columns: leave out all but {MAX_LISTED} of them")
    return [name.strip() for name in names]
