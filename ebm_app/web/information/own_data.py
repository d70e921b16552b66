"""The mutual information of a visitor's paired data, with the bound while it is learned."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.tabular.mutual_information import Estimation, Progress
from ebm_app.tabular.plots import plot_progress

from ..buttons import (
    AT_ONCE,
    RUNNING,
    STARTING,
    empty_by,
    start_and_stop,
    start_by,
    stop_by,
    stopped,
)
from ..explanations import explained
from ..ranges import whole
from ..shared import MAX_SEED, slider
from ..training import metrics_box, run_box, seed_box, show_first
from .paired_data import (
    MAX_COLUMNS,
    MAX_ROWS,
    MIN_ROWS,
    PairedFiles,
    column_names,
    described,
    draw_example,
    examples,
    read,
)

MAX_STEPS = 2_000
ShownEstimate = tuple[Figure, str, dict[str, Any]]


def estimate(files: PairedFiles, steps: int, seed: int) -> Iterator[ShownEstimate]:
    """Mutual information of data: (plot, text, metrics) before the work, after every validation
    and at the end.

    Whoever stops iterating stops the work.

    Args:
        steps: of training, at most.

    Raises:
        UserError: as ``read``, for numbers out of range, and for too few rows that differ.
    """
    steps = whole("steps", steps, 1, MAX_STEPS)
    seed = whole("the seed", seed, 0, MAX_SEED)
    x, y = read(files)
    data = described(files)
    label = f"{data} · {steps} steps at most · seed {seed}"
    begin, done = time.perf_counter(), []
    estimation = Estimation(x, y, steps=steps, random_state=seed)
    yield plot_progress([], [], steps), f"{STARTING} · {len(x)} rows · {label}", {}
    for progress in estimation.run():
        done.append(progress)
        plot = plot_progress([at.step for at in done], [at.so_far for at in done], steps)
        seconds = time.perf_counter() - begin
        yield plot, f"{report(progress, seconds)}\n{label}", {}
    found = estimation.result()
    seconds = time.perf_counter() - begin
    size = f"{len(x)} rows, {x.shape[1]} + {y.shape[1]} columns · {seconds:.1f} s"
    given = {"data": data, "steps": steps, "seed": seed}
    yield found.plot(), f"{found.summary()}\n{size}\n{label}", {**found.figures(), **given}


def report(progress: Progress, seconds: float) -> str:
    """How far the training is, and the bound so far, in words."""
    return (
        f"{RUNNING} {progress.step} of {progress.num_steps} · {seconds:.1f} s\n"
        f"lower bound so far {progress.so_far:.4f} nats"
    )


def build(seed: int) -> None:
    """Put the estimate on the page, with its endpoints /mi and /mi_example.

    Args:
        seed: the one to begin with.
    """
    gr.Markdown(
        "How much do X and Y say about each other? Row i of both is one draw, and "
        f"the rows are independent; up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            with gr.Tab("Arrays"):
                x, y = (_upload(f"{name} (.npy)", ".npy") for name in "XY")
                group = gr.Group()
            with gr.Tab("Table"):
                table = _upload("CSV file with a header", ".csv")
                columns = [_columns(f"Columns of {name}") for name in "XY"]
            steps, seeds = slider(1, MAX_STEPS, 1_000, "Steps at most"), seed_box(seed)
            start, stop = start_and_stop("Estimate")
        with gr.Column(scale=2, min_width=320):
            text = run_box("Estimate", lines=8)
            plot = gr.Plot(label="Bounds and estimate", format="png", visible=False)
            metrics = metrics_box()
    _add_examples(group, [x, y, table], seeds)

    @explained
    def run(
        x: str | None,
        y: str | None,
        csv: str | None,
        x_columns: list[str],
        y_columns: list[str],
        steps: int,
        seed: int,
    ) -> Iterator[ShownEstimate]:
        """Estimate the mutual information of two .npy files, or of columns of a CSV file; returns
        a plot of the estimate and its bounds, a text, and the metrics in nats."""
        files = PairedFiles(x, y, csv, x_columns, y_columns)
        yield from estimate(files, steps, seed)

    @explained
    def list_columns(path: str | None) -> Iterator[tuple[dict, dict]]:
        names = column_names(path)
        yield tuple(gr.update(choices=names, value=[]) for _ in columns)

    shown = [plot, text, metrics]
    chosen = [x, y, table, *columns]
    event = start_by(show_first(start, plot), run, [*chosen, steps, seeds], shown, api_name="mi")
    stop_by(stop, [event], stopped, [text])
    table.change(list_columns, table, columns, api_visibility="private")
    empty_by([part.change for part in chosen], [event], shown)


def _add_examples(group: gr.Group, files: list[gr.File], seed: gr.Number) -> None:
    """Data of known mutual information in place of a visitor's own."""
    with group:
        task = gr.Dropdown(
            examples(), value="normal_1x1", label="Try data of known mutual information"
        )
        num_rows = slider(MIN_ROWS, MAX_ROWS, 2_000, "Rows to draw")
        draw = gr.Button("Draw X and Y")
        truth = gr.Textbox(label="True value of what was drawn", interactive=False)

    @explained
    def example(task: str, num_rows: int, seed: int) -> Iterator[tuple[str, str, None, str]]:
        """Draw data of known mutual information; returns X, Y, no CSV file, and the true value."""
        with TemporaryDirectory() as folder:  # the page keeps copies in gradio's cache
            x, y, text = draw_example(task, num_rows, seed, Path(folder))
            yield x, y, None, text

    draw.click(example, [task, num_rows, seed], [*files, truth], api_name="mi_example")
    for file in files:
        gr.on([file.upload, file.clear, file.delete], lambda: "", outputs=truth, **AT_ONCE)


def _upload(label: str, kind: str) -> gr.File:
    return gr.File(label=label, file_types=[kind], type="filepath", height=100)


def _columns(label: str) -> gr.Dropdown:
    return gr.Dropdown([], value=[], multiselect=True, allow_custom_value=True, label=label)
