"""The tab on mutual information: of a visitor's own data, and of Gaussians of known value."""

import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gaussian_information
import gradio as gr
import numpy as np
import torch
from generate import RUNNING, stopped
from live import HIDDEN, SHOWN, whole
from matplotlib.figure import Figure
from shared import MAX_SEED, ONE_AT_A_TIME, explained

from ebm_app.data.columns import PREPROCESSING, Pair, read_csv_pair, read_pair
from ebm_app.data.mi_tasks import MI_TASKS
from ebm_app.errors import UserError, choose
from ebm_app.mutual_information import FoldResult, MIEstimate, MISettings, folds, summarise
from ebm_app.ratios.training import RatioTraining
from ebm_app.studies.information_plots import plot_folds

#: fewer rows leave too little to learn from; more rows or columns would keep others waiting
MIN_ROWS, MAX_ROWS, MAX_COLUMNS, MAX_ITERATIONS, NUM_FOLDS = 100, 20_000, 64, 2_000, 3
MAX_LISTED = 500
MAPS = {"none": "only to unit variance", "rank": "ranks to a normal law", "asinh": "asinh"}
TEXT = """Mutual information: {mi:.4f} ± {stderr:.4f} nats
{rows} rows, {dx} + {dy} columns · {seconds:.1f} s
log of the mean ratio over pairs of different rows: {normaliser:+.3f} (0 in the limit; far from \
it, the estimate is not to be believed)"""
Output = tuple[Figure, str, dict[str, Any]]


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
    stop.click(stopped, text, text, cancels=event, queue=False, api_visibility="private")
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
