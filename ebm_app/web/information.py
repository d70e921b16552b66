"""Mutual information tab: estimate it from paired rows, from two .npy files or a CSV file."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from ebm_app.ratios.information import EXAMPLES, InformationFit, draw_example
from ebm_app.ratios.rows import read_rows
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.registry import choose

from .models import hide_path
from .shared import (
    AT_ONCE,
    clear_on,
    metrics_box,
    plot_box,
    seed_box,
    slider,
    start_and_stop,
    start_by,
    text_box,
)

MAX_STEPS, MAX_ROWS, MAX_COLUMNS = 2_000, 20_000, 64
#: Max columns of a CSV file in the menus
MAX_LISTED = 500
HINT = (
    "Estimate the mutual information of X and Y in nats. Row i of X and row i of Y are one draw, "
    f"and rows are independent. Up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
)


def read_pair(
    x: str | None, y: str | None, table: str | None, columns: Sequence[Sequence[str]]
) -> tuple[Any, Any]:
    """Return x (N, dx) and y (N, dy) from two .npy files or from the named columns of a CSV file.

    Raises:
        UserError: if a file is missing or invalid, or there are too many rows or columns.
    """
    if table and (x or y):
        raise UserError("Got both .npy files and a CSV file. Remove one of them.")
    if not table and not (x and y):
        raise UserError("Data are missing. Upload two .npy files or a CSV file.")
    first, second = Path(table or x), Path(table or y)
    with hide_path(first, first.name), hide_path(second, second.name):
        pair = read_rows(first, columns[0]), read_rows(second, columns[1])
    num_rows, num_columns = len(pair[0]), sum(part.shape[1] for part in pair)
    for num, limit, name in ((num_rows, MAX_ROWS, "rows"), (num_columns, MAX_COLUMNS, "columns")):
        if num > limit:
            raise UserError(f"Expected at most {limit} {name}, got {num}. Upload fewer {name}.")
    return pair


def mi(
    x: str | None,
    y: str | None,
    csv: str | None,
    x_columns: list[str],
    y_columns: list[str],
    steps: int,
    seed: int,
) -> Iterator[tuple[Figure | None, str, dict[str, Any]]]:
    """Estimate the mutual information of two .npy files, or of columns of a CSV file.

    Returns a histogram of the log ratios, a text, and the metrics in nats.
    """
    data = " and ".join(Path(file).name for file in (csv, x, y) if file)
    if csv:
        names = [shorten(", ".join(columns)) for columns in (x_columns, y_columns)]
        data += f", X = {names[0]} and Y = {names[1]}"
    x, y = read_pair(x, y, csv, (x_columns, y_columns))
    label = f"{data} · up to {steps} steps · seed {seed}"
    begin = time.perf_counter()
    estimation = InformationFit(x, y, steps=steps, random_state=seed)
    yield None, f"Starting · {len(x)} rows · {label}", {}
    for fold in estimation.run():
        head = f"Fold {fold} of {estimation.num_folds} · {time.perf_counter() - begin:.1f} s"
        yield None, f"{head}\n{label}", {}
    estimate = estimation.result()
    seconds = time.perf_counter() - begin
    size = f"{len(x)} rows, {x.shape[1]} + {y.shape[1]} columns · {seconds:.1f} s"
    metrics = {**estimate.figures(), "data": data, "steps": steps, "seed": seed}
    yield estimate.plot(), f"{estimate.summary()}\n{size}\n{label}", metrics


def mi_example(task: str, num_rows: int, seed: int) -> Iterator[tuple[str, str, None, str]]:
    """Draw data with known mutual information. Returns X, Y, None (no CSV file) and the true
    value."""
    information = EXAMPLES[choose("task", task, EXAMPLES)][0]
    pair = draw_example(task, num_rows, torch.Generator().manual_seed(seed))
    with TemporaryDirectory() as folder:  # the page copies the files
        x, y = (str(Path(folder) / f"{task}_{name}.npy") for name in "xy")
        for path, part in zip((x, y), pair, strict=True):
            np.save(path, part.numpy(), allow_pickle=False)
        yield x, y, None, f"{task}: {information:.4f} nats"


def column_names(path: str | None) -> list[str]:
    """Return the column names of a CSV file; none if it cannot be read, which ``mi`` reports."""
    with suppress(OSError, ValueError):
        if path:
            table = pd.read_csv(path, encoding="utf-8-sig", skipinitialspace=True, nrows=0)
            return list(table.columns[:MAX_LISTED].str.strip())
    return []


def build(app: gr.Blocks, seed: int) -> None:
    """Add the tab and its endpoints /mi and /mi_example to the page, with an example loaded."""
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            with gr.Tab("Arrays"):
                x, y = (file_box(f"{name} (.npy)", ".npy") for name in "XY")
                with gr.Group():
                    label = "Example with known mutual information"
                    task = gr.Dropdown(list(EXAMPLES), value="normal_1x1", label=label)
                    num_rows = slider(100, MAX_ROWS, 2_000, "Rows to draw")
                    draw = gr.Button("Draw X and Y")
                    truth = text_box("True value", placeholder="")
            with gr.Tab("Table"):
                table = file_box("CSV file with a header", ".csv")
                options = {"multiselect": True, "allow_custom_value": True}
                columns = [gr.Dropdown([], label=f"Columns of {name}", **options) for name in "XY"]
            steps, seeds = slider(1, MAX_STEPS, 1_000, "Max steps"), seed_box(seed)
            buttons = start_and_stop("Estimate")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Estimate", 8)
            outputs = [plot_box("Log ratios"), text, metrics_box()]
    inputs, drawn = [task, num_rows, seeds], [x, y, table, truth]
    app.load(mi_example, inputs, drawn, **AT_ONCE)
    for file in (x, y, table):
        gr.on([file.upload, file.clear, file.delete], lambda: "", outputs=truth, **AT_ONCE)

    def list_columns(path: str | None) -> tuple[dict[str, Any], ...]:
        names = column_names(path)
        return tuple(gr.update(choices=names, value=[]) for _ in columns)

    data = [x, y, table, *columns]
    event = start_by(buttons, mi, [*data, steps, seeds], outputs, "research")
    table.change(list_columns, table, columns, **AT_ONCE)
    actions = [a for file in (x, y, table) for a in (file.upload, file.clear, file.delete)]
    clear_on([draw.click, *actions, *(part.input for part in columns)], [event], outputs)
    # after clear_on, because the page dispatches the events of a click in this order, and an
    # estimate may start as soon as the new files are there
    draw.click(mi_example, inputs, drawn, api_name="mi_example")


def file_box(label: str, suffix: str) -> gr.File:
    """File upload for one file type."""
    return gr.File(label=label, file_types=[suffix], type="filepath", height=100)
