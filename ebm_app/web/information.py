"""Mutual information tab: estimates from paired rows in two files."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import numpy as np
import torch
from matplotlib.figure import Figure

from ebm_app.ratios.information import EXAMPLES, InformationFit, draw_example
from ebm_app.ratios.rows import read_rows
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

from . import shared

MAX_STEPS, MAX_ROWS, MAX_COLUMNS = 2_000, 20_000, 64
#: File types of X and Y
SUFFIXES = [".npy", ".csv", ".tsv", ".parquet"]
HINT = (
    "Estimate the mutual information of X and Y in nats. Row i of X and Y is an independent draw. "
    f"Upload arrays or tables with headers: up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
)


def mi(
    x: str | None, y: str | None, steps: int, seed: int
) -> Iterator[tuple[Figure | None, str, dict[str, Any]]]:
    """Estimate the mutual information of the rows of two files.

    Returns a histogram of the log ratios, a text, and the metrics in nats.
    """
    if not (x and y):
        raise UserError("Data are missing. Upload a file of X and a file of Y.")
    data = f"{Path(x).name} and {Path(y).name}"
    x, y = read_rows(x), read_rows(y)
    num_rows, num_columns = len(x), x.shape[1] + y.shape[1]
    if num_rows > MAX_ROWS or num_columns > MAX_COLUMNS:
        raise UserError(
            f"Got {num_rows} rows and {num_columns} columns. Upload at most {MAX_ROWS} rows and "
            f"{MAX_COLUMNS} columns."
        )
    label = f"{data} · up to {steps} steps · seed {seed}"
    begin = time.perf_counter()
    estimation = InformationFit(x, y, steps=steps, random_state=seed)
    yield None, f"Starting · {num_rows} rows · {label}", {}
    for fold in estimation.run():
        head = f"Fold {fold} of {estimation.num_folds} · {time.perf_counter() - begin:.1f} s"
        yield None, f"{head}\n{label}", {}
    estimate = estimation.result()
    seconds = time.perf_counter() - begin
    size = f"{num_rows} rows, {x.shape[1]} + {y.shape[1]} columns · {seconds:.1f} s"
    metrics = {**estimate.figures(), "data": data, "steps": steps, "seed": seed}
    yield estimate.plot(), f"{estimate.summary()}\n{size}\n{label}", metrics


def mi_example(task: str, num_rows: int, seed: int) -> Iterator[tuple[str, str]]:
    """Draw X and Y with known mutual information, and return their files."""
    choose("task", task, EXAMPLES)
    pair = draw_example(task, num_rows, torch.Generator().manual_seed(seed))
    with TemporaryDirectory() as folder:  # the page copies the files
        files = [Path(folder) / f"{task}_{name}.npy" for name in "xy"]
        for file, rows in zip(files, pair, strict=True):
            np.save(file, rows.numpy())
        yield str(files[0]), str(files[1])


def build(app: gr.Blocks, seed: int) -> None:
    """Add the tab and its endpoints /mi and /mi_example to the page, with an example loaded."""
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            data = [
                gr.File(label=name, file_types=SUFFIXES, type="filepath", height=100)
                for name in "XY"
            ]
            with gr.Group():
                labels = [f"{name}: {nats:.4f} nats" for name, (nats, *_) in EXAMPLES.items()]
                task = gr.Dropdown(
                    [*zip(labels, EXAMPLES, strict=True)],
                    value="normal_1x1",
                    label="Example with known mutual information",
                )
                num_rows = shared.slider(100, MAX_ROWS, 2_000, label="Rows to draw")
                draw = gr.Button("Draw X and Y")
            steps, seeds = (
                shared.slider(1, MAX_STEPS, 1_000, label="Max steps"),
                shared.seed_box(seed),
            )
            buttons = shared.start_and_stop("Estimate")
        with gr.Column(scale=2, min_width=320):
            text = shared.text_box(label="Estimate", lines=8)
            outputs = [shared.plot_box(label="Log ratios"), text, shared.metrics_box()]
    inputs = [task, num_rows, seeds]
    event = shared.start_by(buttons, mi, [*data, steps, seeds], outputs, "research")
    actions = [a for file in data for a in (file.upload, file.clear, file.delete)]
    shared.clear_on([draw.click, *actions], [event], outputs)
    # after clear_on, because the page dispatches the events of a click in this order, and an
    # estimate may start as soon as the new files arrive
    draw.click(mi_example, inputs, data, api_name="mi_example")
    app.load(mi_example, inputs, data, **shared.AT_ONCE)
