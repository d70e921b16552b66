"""A visitor's paired data: two .npy files, or columns of a CSV file, or draws of a known law."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ebm_app.errors import UserError
from ebm_app.ratios.data.columns import Pair, read_csv_pair, read_pair
from ebm_app.ratios.data.mi_tasks import MI_TASKS
from ebm_app.registry import choose

from ..live import whole
from ..shared import MAX_SEED

#: fewer rows leave too little to learn from; more rows or columns would keep others waiting
MIN_ROWS, MAX_ROWS, MAX_COLUMNS, MAX_LISTED = 100, 20_000, 64, 500


class Source(NamedTuple):
    """Where a visitor's data are: two .npy files, or one CSV file and the names of its columns."""

    x: str | None = None
    y: str | None = None
    csv: str | None = None
    x_columns: Sequence[str] = ()
    y_columns: Sequence[str] = ()


def read(source: Source) -> Pair:
    """x (N, dx) and y (N, dy), float64.

    Raises:
        UserError: for files that do not belong together, as the readers say but without the
            folders of the server, and for more data than the page takes.
    """
    if source.csv and (source.x or source.y):
        raise UserError("there are .npy files and a CSV file: take one or the other away")
    if not source.csv and not (source.x and source.y):
        raise UserError("there are no data for both X and Y: upload two .npy files or a CSV file")
    try:
        x, y = _read(source)
    except UserError as error:
        raise UserError(_without_folders(str(error), source)) from None
    if len(x) > MAX_ROWS:
        raise UserError(f"there are {len(x)} rows, more than {MAX_ROWS}: upload a part of them")
    columns = x.shape[1] + y.shape[1]
    if columns > MAX_COLUMNS:
        raise UserError(f"there are {columns} columns, more than {MAX_COLUMNS}: leave some out")
    return x, y


def _read(source: Source) -> Pair:
    if source.csv:
        return read_csv_pair(source.csv, source.x_columns, source.y_columns, MIN_ROWS)
    return read_pair(source.x, source.y, MIN_ROWS)


def _without_folders(message: str, source: Source) -> str:
    for path in filter(None, source[:3]):
        message = message.replace(str(path), Path(path).name)
    return message


def draw_example(task: str, num_rows: int, seed: int, folder: Path) -> tuple[str, str, str]:
    """Draws of a law of known mutual information as two .npy files in a folder: their paths, and a
    sentence with the true value.

    Raises:
        UserError: for an unknown task or numbers out of range.
    """
    law = MI_TASKS[choose("task", task, MI_TASKS)]
    num_rows = whole("the number of rows", num_rows, MIN_ROWS, MAX_ROWS)
    generator = torch.Generator().manual_seed(whole("the seed", seed, 0, MAX_SEED))
    paths = [folder / f"{task}_{name}.npy" for name in ("x", "y")]
    for path, part in zip(paths, law.sample(num_rows, generator), strict=True):
        np.save(path, part.double().numpy(), allow_pickle=False)
    return str(paths[0]), str(paths[1]), f"{task}: {law.mutual_information:.4f} nats"


def examples() -> list[str]:
    """The tasks that are small enough for the page."""
    return [name for name, law in MI_TASKS.items() if law.dim_x + law.dim_y <= MAX_COLUMNS]


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
