"""The mutual information of a visitor's paired data, two .npy files or columns of a CSV file, with
the bound while it is learned."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import gradio as gr
import numpy as np
import pandas as pd
import torch
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.tabular.columns import read_rows
from ebm_app.tabular.known import EXAMPLES
from ebm_app.tabular.mutual_information import Estimation
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import shorten
from ebm_app.utils.registry import choose

from .models import without_path
from .runs import AT_ONCE, Upload, empty_by, explained, start_and_stop, start_by
from .shared import Seed, metrics_box, plot_box, progress, seed_box, slider, text_box

MAX_STEPS = 2_000
#: more rows or columns would keep others waiting
MAX_ROWS, MAX_COLUMNS, MAX_LISTED = 20_000, 64, 500
ShownEstimate = tuple[Figure, str, dict[str, Any]]


def read(
    x: str | None, y: str | None, table: str | None, columns: Sequence[Sequence[str]]
) -> tuple[Any, Any]:
    """x (N, dx) and y (N, dy), float64.

    Raises:
        UserError: for files that do not belong together, as the readers say but without the
            folders of the server, and for more data than the page takes.
    """
    if table and (x or y):
        raise UserError("there are .npy files and a CSV file: take one or the other away")
    if not table and not (x and y):
        raise UserError("there are no data for both X and Y: upload two .npy files or a CSV file")
    first, second = Path(table or x), Path(table or y)
    with without_path(first, first.name), without_path(second, second.name):
        pair = read_rows(first, columns[0]), read_rows(second, columns[1])
    num_rows, num_columns = len(pair[0]), sum(part.shape[1] for part in pair)
    if num_rows > MAX_ROWS:
        raise UserError(f"there are {num_rows} rows, more than {MAX_ROWS}: upload a part of them")
    if num_columns > MAX_COLUMNS:
        raise UserError(
            f"there are {num_columns} columns, more than {MAX_COLUMNS}: leave some out"
        )
    return pair


def plot_progress(bounds: Sequence[tuple[int, float]], num_steps: int) -> Figure:
    """The bound so far, in nats, against the step, by pairs of both."""
    figure = Figure(figsize=(4.2, 3.0), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.plot(*np.reshape(bounds, (-1, 2)).T, "o-", ms=4, clip_on=False)
    axes.set(xlabel="step", ylabel="lower bound so far, nats", xlim=(0, num_steps))
    axes.set_ylim(min(0.0, axes.get_ylim()[0]))
    return figure


def mi(
    x: Upload | None,
    y: Upload | None,
    csv: Upload | None,
    x_columns: list[str],
    y_columns: list[str],
    steps: Annotated[int, Ge(1), Le(MAX_STEPS)],
    seed: Seed,
) -> Iterator[ShownEstimate]:
    """Estimate the mutual information of two .npy files, or of columns of a CSV file; returns
    a plot of the estimate and its bounds, a text, and the metrics in nats."""
    data = " and ".join(Path(file).name for file in (csv, x, y) if file)
    if csv:
        names = [shorten(", ".join(part)) for part in (x_columns, y_columns)]
        data += f", X = {names[0]} and Y = {names[1]}"
    x, y = read(x, y, csv, (x_columns, y_columns))
    label = f"{data} · {steps} steps at most · seed {seed}"
    begin, done = time.perf_counter(), []
    estimation = Estimation(x, y, steps=steps, random_state=seed)
    yield plot_progress([], steps), f"Starting · {len(x)} rows · {label}", {}
    for step, bound in estimation.run():
        done.append((step, bound))
        head = f"{progress(step, steps)} · {time.perf_counter() - begin:.1f} s"
        text = f"{head}\nlower bound so far {bound:.4f} nats\n{label}"
        yield plot_progress(done, steps), text, {}
    found = estimation.result()
    seconds = time.perf_counter() - begin
    size = f"{len(x)} rows, {x.shape[1]} + {y.shape[1]} columns · {seconds:.1f} s"
    given = {"data": data, "steps": steps, "seed": seed}
    yield found.plot(), f"{found.summary()}\n{size}\n{label}", {**found.figures(), **given}


def mi_example(
    task: str, num_rows: Annotated[int, Ge(100), Le(MAX_ROWS)], seed: Seed
) -> Iterator[tuple[str, str, None, str]]:
    """Draw data of known mutual information; returns X, Y, no CSV file, and the true value."""
    information, draw = EXAMPLES[choose("task", task, EXAMPLES)]
    draws = draw(num_rows, torch.Generator().manual_seed(seed))
    with TemporaryDirectory() as folder:  # the page keeps copies
        x, y = (str(Path(folder) / f"{task}_{name}.npy") for name in "xy")
        for path, part in zip((x, y), draws, strict=True):
            np.save(path, part.numpy(), allow_pickle=False)
        yield x, y, None, f"{task}: {information:.4f} nats"


def column_names(path: str | None) -> list[str]:
    """The names in the first line of a CSV file; none for no file, or one that is no CSV, which
    is explained when it is estimated from.
    """
    with suppress(OSError, ValueError):
        if path:
            table = pd.read_csv(path, encoding="utf-8-sig", skipinitialspace=True, nrows=0)
            return list(table.columns[:MAX_LISTED].str.strip())
    return []


def build(app: gr.Blocks, seed: int) -> None:
    """Put the estimate on the page, with its endpoints /mi and /mi_example; an example is there
    when it is opened."""
    gr.Markdown(
        "How much do X and Y say about each other? Row i of both is one draw, and "
        f"the rows are independent; up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            with gr.Tab("Arrays"):
                x, y = (file_box(f"{name} (.npy)", ".npy") for name in "XY")
                with gr.Group():
                    label = "Try data of known mutual information"
                    task = gr.Dropdown(list(EXAMPLES), value="normal_1x1", label=label)
                    num_rows = slider(100, MAX_ROWS, 2_000, "Rows to draw")
                    draw = gr.Button("Draw X and Y")
                    truth = text_box("True value of what was drawn", placeholder="")
            with gr.Tab("Table"):
                table = file_box("CSV file with a header", ".csv")
                several = {"multiselect": True, "allow_custom_value": True}
                columns = [gr.Dropdown([], label=f"Columns of {name}", **several) for name in "XY"]
            steps, seeds = slider(1, MAX_STEPS, 1_000, "Steps at most"), seed_box(seed)
            buttons = start_and_stop("Estimate")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Estimate", 8)
            plot = plot_box("Bounds and estimate")
            shown = [plot, text, metrics_box()]
    given, drawn = [task, num_rows, seeds], [x, y, table, truth]
    example = explained(mi_example)
    draw.click(example, given, drawn, preprocess=False, api_name="mi_example")
    app.load(example, given, drawn, preprocess=False, **AT_ONCE)
    for file in (x, y, table):
        gr.on([file.upload, file.clear, file.delete], lambda: "", outputs=truth, **AT_ONCE)

    def list_columns(path: str | None) -> tuple[dict[str, Any], ...]:
        names = column_names(path)
        return tuple(gr.update(choices=names, value=[]) for _ in columns)

    chosen = [x, y, table, *columns]
    event = start_by(buttons, mi, [*chosen, steps, seeds], shown)
    table.change(explained(list_columns), table, columns, **AT_ONCE)
    empty_by([part.change for part in chosen], [event], shown)


def file_box(label: str, kind: str) -> gr.File:
    """An upload of files of a kind."""
    return gr.File(label=label, file_types=[kind], type="filepath", height=100)
