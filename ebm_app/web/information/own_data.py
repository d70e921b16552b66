"""The mutual information of a visitor's paired data, fold by fold."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import torch
from matplotlib.figure import Figure

from ebm_app.ratios.data.preprocessing import PREPROCESSING
from ebm_app.ratios.mutual_information import FoldResult, MIEstimate, MISettings, folds, summarise
from ebm_app.ratios.studies.information_plots import plot_folds
from ebm_app.ratios.training import RatioTraining
from ebm_app.registry import choose

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

MAX_ITERATIONS, NUM_FOLDS = 2_000, 3
LABELS = {
    "none": "only to unit variance",
    "rank": "ranks to a normal distribution",
    "asinh": "asinh",
}
ShownEstimate = tuple[Figure, str, dict[str, Any]]


def estimate(
    files: PairedFiles, preprocessing: str, iterations: int, seed: int, device: str = "cpu"
) -> Iterator[ShownEstimate]:
    """Mutual information of data: (plot, text, metrics) before the work and after every fold.

    Whoever stops iterating stops the work, and keeps the folds that are done.

    Args:
        preprocessing: of every column, a key of ``PREPROCESSING``.
        iterations: training steps of a fold.

    Raises:
        UserError: as ``read``, for numbers out of range, and for columns that are constant or
            determine each other.
    """
    iterations = whole("iterations", iterations, 1, MAX_ITERATIONS)
    seed = whole("the seed", seed, 0, MAX_SEED)
    transform = PREPROCESSING[choose("preprocessing", preprocessing, PREPROCESSING)]
    x, y = (torch.from_numpy(transform(part)).to(device) for part in read(files))
    training = RatioTraining(iterations, eval_every=max(1, iterations // 10))
    settings = MISettings(num_folds=NUM_FOLDS, num_seeds=1, training=training)
    data = described(files)
    label = f"{data} · {LABELS[preprocessing]} · {iterations} steps a fold · seed {seed}"
    text = f"{STARTING} · {len(x)} rows · {label}"
    yield plot_folds([], NUM_FOLDS), text, {}
    begin, done = time.perf_counter(), []
    for result in folds(x, y, settings, seed):
        done.append(result)
        if len(done) < NUM_FOLDS:
            seconds = time.perf_counter() - begin
            yield plot_folds(done, NUM_FOLDS), f"{folds_report(done, seconds)}\n{label}", {}
    found = summarise(done, len(x), settings.num_seeds)
    given = {
        "data": data,
        "num_rows": len(x),
        "preprocessing": preprocessing,
        "iterations": iterations,
    }
    text = f"{report(found, x, y, time.perf_counter() - begin)}\n{label}"
    yield plot_folds(done, NUM_FOLDS, found), text, {**found._asdict(), **given, "seed": seed}


def folds_report(done: Sequence[FoldResult], seconds: float) -> str:
    """The mean over the folds that are done, in words."""
    values = torch.cat([result.log_ratio for result in done])
    return (
        f"{RUNNING} {len(done)} of {NUM_FOLDS} folds · {seconds:.1f} s\n"
        f"so far {values.mean().item():.4f} nats, over {len(values)} rows left out"
    )


def report(found: MIEstimate, x: torch.Tensor, y: torch.Tensor, seconds: float) -> str:
    """The estimate in words."""
    return (
        f"Mutual information: {found.mutual_information:.4f} ± {found.stderr:.4f} nats\n"
        f"{len(x)} rows, {x.shape[1]} + {y.shape[1]} columns · {seconds:.1f} s\n"
        f"log of the mean ratio over pairs of different rows: {found.log_normaliser:+.3f} (it "
        "tends to 0 with more data and training; where it is far from 0, do not trust the "
        "estimate)"
    )


def build(seed: int, device: str) -> None:
    """Put the estimate on the page, with its endpoints /mi and /mi_example.

    Args:
        seed: the one to begin with. device: where the work is done.
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
            settings = _settings(seed)
            start, stop = start_and_stop("Estimate")
        with gr.Column(scale=2, min_width=320):
            text = run_box("Estimate")
            plot = gr.Plot(label="Folds", format="png", visible=False)
            metrics = metrics_box()
    _add_examples(group, [x, y, table], settings[-1])

    @explained
    def run(
        x: str | None,
        y: str | None,
        csv: str | None,
        x_columns: list[str],
        y_columns: list[str],
        preprocessing: str,
        iterations: int,
        seed: int,
    ) -> Iterator[ShownEstimate]:
        """Estimate the mutual information of two .npy files, or of columns of a CSV file; returns
        a plot of the folds, a text, and the metrics in nats."""
        files = PairedFiles(x, y, csv, x_columns, y_columns)
        yield from estimate(files, preprocessing, iterations, seed, device)

    @explained
    def list_columns(path: str | None) -> Iterator[tuple[dict, dict]]:
        names = column_names(path)
        yield tuple(gr.update(choices=names, value=[]) for _ in columns)

    shown = [plot, text, metrics]
    inputs = [x, y, table, *columns, *settings]
    event = start_by(show_first(start, plot), run, inputs, shown, api_name="mi")
    stop_by(stop, [event], stopped, [text])
    table.change(list_columns, table, columns, api_visibility="private")
    chosen = [x, y, table, *columns, settings[0]]
    empty_by([part.change for part in chosen], [event], shown)


def _settings(seed: int) -> tuple[gr.Dropdown, gr.Slider, gr.Number]:
    """Preprocessing, iterations and seed."""
    preprocessing = gr.Dropdown(
        [(LABELS[name], name) for name in PREPROCESSING],
        value="none",
        label="Preprocessing of every column",
        info="the mutual information stays the same, but may be easier to learn",
    )
    iterations = slider(1, MAX_ITERATIONS, 500, "Iterations of a fold")
    return preprocessing, iterations, seed_box(seed)


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
