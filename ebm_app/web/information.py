"""Mutual information page: the paper's Gaussians, learned live, and paired rows in two files."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from ebm_app.ratios import ClassifierRatio, CTSMRatio, mutual_information
from ebm_app.ratios.plots import plot_learning
from ebm_app.ratios.problems import learn_information
from ebm_app.ratios.rows import SEPARATORS, read_rows
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import check_argument
from ebm_app.utils.registry import choose

from . import shared

MAX_STEPS, MAX_ROWS, MAX_COLUMNS = 5_000, 20_000, 64
#: Dimensions of the paper's Gaussians
DIMENSIONS = (40, 80, 160, 320)
#: File types of X and Y
SUFFIXES = [".npy", ".csv", ".tsv", ".parquet"]
#: Label of the choice -> estimator
ESTIMATORS = {"automatic": None, "classifier": ClassifierRatio, "CTSM-v": CTSMRatio}
PAPER_INTRO = (
    "# Mutual information\n"
    f"CTSM-v, a form of {shared.PAPER}, learns the density of the paper's Gaussians from their "
    "draws. Their mutual information is a quarter of the dimension D, in nats."
)
ROWS_INTRO = (
    "## Your own rows\n"
    "Estimate the mutual information of your X and Y. Row i of both is an independent draw. "
    f"Upload arrays or tables with headers: up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
)


def mi_paper(
    dim: int, steps: int, seed: int, *, device: str = "cpu"
) -> Iterator[tuple[Figure, str, dict[str, Any]]]:
    """Learn the mutual information of the paper's Gaussians by CTSM-v.

    Returns a plot of the estimate by training step, a text, and the metrics in nats. During
    training the estimate follows from the learned precision matrix. The last one is the mean of
    the learned log ratio over test draws, with a 95 percent interval.
    """
    check_argument(Literal[DIMENSIONS], "dimension", dim)
    truth, curve, begin = dim / 4, [], time.perf_counter()
    for state in learn_information(dim, steps, seed, device):
        curve.append((state.step, state.value))
        metrics = {"dim": dim, "value": state.value, "truth": truth, "step": state.step}
        text = f"{state.value:.2f} nats by CTSM-v · truth {truth:g} nats"
        if state.stderr is not None:
            half = 1.96 * state.stderr
            low, high = metrics["interval"] = [state.value - half, state.value + half]
            mark = "✓ holds" if low <= truth <= high else "✗ does not hold"
            text += f"\n95 percent interval {low:.2f} to {high:.2f}: {mark} the truth"
        run = f"D = {dim} · step {state.step} of {steps} · seed {seed}"
        text += f"\n{run} · {time.perf_counter() - begin:.1f} s"
        yield plot_learning(curve, truth), text, metrics


def mi(
    x: str | None, y: str | None, estimator: str, seed: int
) -> tuple[Figure, str, dict[str, Any]]:
    """Estimate the mutual information of the rows of two files.

    Returns a histogram of the log ratios, a text, and the metrics in nats.
    """
    if not (x and y):
        raise UserError("Data are missing. Upload a file of X and a file of Y.")
    kind = ESTIMATORS[choose("estimator", estimator, ESTIMATORS)]
    data = f"{Path(x).name} and {Path(y).name}"
    for path in (x, y):
        check_size(*table_shape(path))
    x, y = read_rows(x), read_rows(y)
    num_rows, num_columns = len(x), x.shape[1] + y.shape[1]
    check_size(num_rows, num_columns)
    begin = time.perf_counter()
    estimate = mutual_information(x, y, kind and kind(random_state=seed), seed)
    size = f"{num_rows} rows, {x.shape[1]} + {y.shape[1]} columns"
    label = f"{data} · {size} · seed {seed} · {time.perf_counter() - begin:.1f} s"
    metrics = {**estimate.figures(), "data": data, "seed": seed}
    return estimate.plot(), f"{estimate.summary()}\n{label}", metrics


def check_size(num_rows: int, num_columns: int) -> None:
    """Raise a ``UserError`` for too many rows or columns."""
    if num_rows > MAX_ROWS or num_columns > MAX_COLUMNS:
        raise UserError(
            f"Got {num_rows} rows and {num_columns} columns. Upload at most {MAX_ROWS} rows and "
            f"{MAX_COLUMNS} columns."
        )


def table_shape(path: str) -> tuple[int, int]:
    """Return the numbers of rows and columns of a table without reading it, since a small file may
    hold millions of equal values. An unknown number, as of a damaged file, is 0.

    Raises:
        UserError: for columns of text or lists in a parquet file.
    """
    if path.endswith(".parquet"):
        from pyarrow import ArrowException, parquet  # an optional package

        try:
            metadata = parquet.read_metadata(path)
        except (ArrowException, OSError):  # reported by read_rows
            return 0, 0
        columns = (metadata.schema.column(index) for index in range(metadata.num_columns))
        for column in columns:
            if "BYTE_ARRAY" in column.physical_type or column.max_repetition_level:
                raise UserError(
                    f"Expected columns of numbers, got text or lists in '{shorten(column.path)}' "
                    f"of {Path(path).name}. Remove the column."
                )
        return metadata.num_rows, metadata.num_columns
    if path.endswith(".npy"):
        try:
            shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
        except (ValueError, OSError, EOFError):
            return 0, 0
        return (*shape, 1, 1)[:2]
    with open(path, encoding="utf-8", errors="replace") as file:
        line = file.readline()
    return 0, 1 + max(map(line.count, SEPARATORS))


def build(seed: int, device: str) -> None:
    """Add the page and its endpoints /mi_paper and /mi."""
    gr.Markdown(PAPER_INTRO)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            dim = gr.Dropdown(DIMENSIONS, value=DIMENSIONS[0], label="Dimension D")
            controls = gr.Column()
            with gr.Accordion("Advanced", open=False):
                steps = shared.slider(50, MAX_STEPS, 2_000, label="Training steps")
                seeds = shared.seed_box(seed)
        with gr.Column(scale=2, min_width=300):
            text = shared.text_box(label="Learned mutual information", lines=2)
            outputs = [shared.plot_box(label="Estimate by step"), text, shared.metrics_box()]
    with controls:
        inputs = [dim, steps, seeds]
        shared.start_by("Learn", mi_paper, inputs, outputs, "research", device=device)

    gr.Markdown(ROWS_INTRO)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            data = [
                gr.File(label=name, file_types=SUFFIXES, type="filepath", height=140)
                for name in "XY"
            ]
            estimator = gr.Dropdown(list(ESTIMATORS), value="automatic", label="Estimator")
            seeds = shared.seed_box(seed)
            controls = gr.Column()
        with gr.Column(scale=2, min_width=300):
            text = shared.text_box(label="Estimate", lines=5)
            outputs = [shared.plot_box(label="Log ratios"), text, shared.metrics_box()]
    with controls:
        shared.start_by("Estimate", mi, [*data, estimator, seeds], outputs, "research")
