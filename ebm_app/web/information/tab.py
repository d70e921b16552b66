"""The tab on mutual information: of a visitor's own data, and of Gaussians of known value."""

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

from ..ending import stop_by
from ..live import HIDDEN, SHOWN, whole
from ..shared import MAX_SEED, ONE_AT_A_TIME, RUNNING, explained, stopped
from . import gaussian as gaussian_information
from .paired_data import (
    MAX_COLUMNS,
    MAX_ROWS,
    MIN_ROWS,
    Source,
    column_names,
    draw_example,
    examples,
    read,
)

MAX_ITERATIONS, NUM_FOLDS = 2_000, 3
MAPS = {"none": "only to unit variance", "rank": "ranks to a normal law", "asinh": "asinh"}
TEXT = """Mutual information: {mi:.4f} ± {stderr:.4f} nats
{rows} rows, {dx} + {dy} columns · {seconds:.1f} s
log of the mean ratio over pairs of different rows: {normaliser:+.3f} (0 in the limit; far from \
it, the estimate is not to be believed)"""
Output = tuple[Figure, str, dict[str, Any]]


def estimate(
    source: Source, preprocessing: str, iterations: int, seed: int, device: str = "cpu"
) -> Iterator[Output]:
    """Mutual information of data: (plot, text, figures) before the work and after every fold.

    Whoever stops iterating stops the work, and keeps the folds that are done.

    Args:
        preprocessing: of every column, a key of ``PREPROCESSING``.
        iterations: training steps of a fold.

    Raises:
        UserError: as :func:`read`, for numbers out of range, and for columns that are constant or
            determine each other.
    """
    iterations = whole("iterations", iterations, 1, MAX_ITERATIONS)
    seed = whole("the seed", seed, 0, MAX_SEED)
    scores = PREPROCESSING[choose("preprocessing", preprocessing, PREPROCESSING)]
    x, y = (torch.from_numpy(scores(part)).to(device) for part in read(source))
    training = RatioTraining(iterations, eval_every=max(1, iterations // 10))
    settings = MISettings(num_folds=NUM_FOLDS, num_seeds=1, training=training)
    yield plot_folds([], NUM_FOLDS), f"Starting · {len(x)} rows · {iterations} steps a fold", {}
    begin, done = time.perf_counter(), []
    for result in folds(x, y, settings, seed):
        done.append(result)
        if len(done) < NUM_FOLDS:
            seconds = time.perf_counter() - begin
            yield plot_folds(done, NUM_FOLDS), progress(done, seconds), {}
    found = summarise(done, len(x), settings.num_seeds)
    given = {"num_rows": len(x), "preprocessing": preprocessing, "iterations": iterations}
    text = report(found, x, y, time.perf_counter() - begin)
    yield plot_folds(done, NUM_FOLDS, found), text, {**found._asdict(), **given, "seed": seed}


def progress(done: Sequence[FoldResult], seconds: float) -> str:
    """How far the folds are."""
    values = torch.cat([result.log_ratio for result in done])
    return (
        f"{RUNNING} {len(done)} of {NUM_FOLDS} folds · {seconds:.1f} s\n"
        f"so far {values.mean().item():.4f} nats, over {len(values)} rows left out"
    )


def report(found: MIEstimate, x: torch.Tensor, y: torch.Tensor, seconds: float) -> str:
    """The estimate in words."""
    return TEXT.format(
        mi=found.mutual_information,
        stderr=found.stderr,
        normaliser=found.log_normaliser,
        rows=len(x),
        dx=x.shape[1],
        dy=y.shape[1],
        seconds=seconds,
    )


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoints /mi_gaussian, /mi_example and /mi.

    Args:
        seed: the one to begin with. device: where the work is done.
    """
    with gr.Tab("Paired Gaussians"):
        gaussian_information.build(seed, device)
    with gr.Tab("Your data"):
        _build_data(seed, device)


def _build_data(seed: int, device: str) -> None:
    gr.Markdown(
        "How much do X and Y tell of each other? Row i of both is one draw, and "
        f"the rows are independent; up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            with gr.Tab("Arrays"):
                x = _upload("X (.npy)", ".npy")
                y = _upload("Y (.npy)", ".npy")
                with gr.Group():
                    task = gr.Dropdown(
                        examples(),
                        value="normal_1x1",
                        label="Try data of known mutual information",
                    )
                    num_rows = gr.Slider(
                        MIN_ROWS, MAX_ROWS, value=2_000, step=1, label="Rows to draw"
                    )
                    draw = gr.Button("Draw X and Y")
                    truth = gr.Textbox(label="True value of what was drawn", interactive=False)
            with gr.Tab("Table"):
                table = _upload("CSV file with a header", ".csv")
                columns = [
                    gr.Dropdown(
                        [], value=[], multiselect=True, allow_custom_value=True, label=label
                    )
                    for label in ("Columns of X", "Columns of Y")
                ]
            preprocessing = gr.Dropdown(
                [(MAPS[name], name) for name in PREPROCESSING],
                value="none",
                label="Preprocessing of every column",
                info="changes no mutual information, but how hard it is to learn",
            )
            iterations = gr.Slider(
                1, MAX_ITERATIONS, value=500, step=1, label="Iterations of a fold"
            )
            seed_box = gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)
            with gr.Row():
                start = gr.Button("Estimate", variant="primary")
                stop = gr.Button("Stop")
        with gr.Column(scale=2, min_width=320):
            text = gr.Textbox(
                label="Estimate", interactive=False, lines=4, placeholder="Not run yet"
            )
            plot = gr.Plot(label="Folds", format="png", visible=False)
            with gr.Accordion("Figures", open=False):
                found = gr.JSON(label="Figures", show_label=False)

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
    ) -> Iterator[Output]:
        """Estimate the mutual information of two .npy files, or of columns of a CSV file; returns
        a plot of the folds, a text, and the figures in nats."""
        source = Source(x, y, csv, x_columns, y_columns)
        yield from estimate(source, preprocessing, iterations, seed, device)

    @explained
    def example(task: str, num_rows: int, seed: int) -> Iterator[tuple[str, str, None, str]]:
        """Draw data of known mutual information; returns X, Y, no CSV file, and the true value."""
        with TemporaryDirectory() as folder:  # the page keeps copies in gradio's cache
            x, y, text = draw_example(task, num_rows, seed, Path(folder))
            yield x, y, None, text

    @explained
    def list_columns(path: str | None) -> Iterator[tuple[dict, dict]]:
        names = column_names(path)
        yield tuple(gr.update(choices=names, value=[]) for _ in columns)

    shown = start.click(lambda: SHOWN, outputs=plot, queue=False, api_visibility="private")
    event = shown.then(
        run,
        [x, y, table, *columns, preprocessing, iterations, seed_box],
        [plot, text, found],
        api_name="mi",
        show_progress="hidden",
        **ONE_AT_A_TIME,
    )
    stop_by(stop, [event], stopped, [text])
    draw.click(example, [task, num_rows, seed_box], [x, y, table, truth], api_name="mi_example")
    table.change(list_columns, table, columns, api_visibility="private")
    for file in (x, y, table):
        file.upload(lambda: "", outputs=truth, api_visibility="private")
    gr.on(  # an estimate never stands beside other data than its own
        [x.change, y.change, table.change],
        lambda: (HIDDEN, "", None),
        outputs=[plot, text, found],
        api_visibility="private",
    )


def _upload(label: str, kind: str) -> gr.File:
    return gr.File(label=label, file_types=[kind], type="filepath", height=100)
