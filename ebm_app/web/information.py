"""Mutual information tab: the paper's Gaussians, learned live, and paired rows in two files."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.ratios import ClassifierRatio, CTSMRatio, mutual_information
from ebm_app.ratios.plots import plot_learning
from ebm_app.ratios.problems import learn_information
from ebm_app.ratios.rows import read_rows
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import check_argument
from ebm_app.utils.registry import choose

from . import shared

MAX_STEPS, MAX_ROWS, MAX_COLUMNS = 5_000, 20_000, 64
#: Dimensions of the paper's Gaussians
DIMENSIONS = (40, 80, 160, 320)
#: File types of X and Y
SUFFIXES = [".npy", ".csv", ".tsv", ".parquet"]
#: Label of the choice -> estimator
ESTIMATORS = {
    "automatic": None,
    "classifier": ClassifierRatio,
    "CTSM-v": CTSMRatio,
}
PAPER_HINT = (
    "CTSM-v learns the density of Gaussians from their draws. Their mutual information is a "
    "quarter of the dimension D, in nats."
)
ROWS_HINT = (
    "Estimate the mutual information of your X and Y. Row i of both is an independent draw. "
    f"Upload arrays or tables with headers: up to {MAX_ROWS:,} rows and {MAX_COLUMNS} columns."
)


def mi_paper(
    dim: int, steps: int, seed: int, *, device: str = "cpu"
) -> Iterator[tuple[Figure, str, dict[str, Any]]]:
    """Learn the mutual information of the paper's Gaussians by CTSM-v.

    Returns a plot of the estimate by training step, a text, and the metrics in nats.
    """
    check_argument(Literal[DIMENSIONS], "dimension", dim)
    truth, curve = dim / 4, []
    begin, shown = time.perf_counter(), 0.0
    for step, value in learn_information(dim, steps, seed, device):
        curve.append((step, value))
        now = time.perf_counter()
        if step < steps and now - shown < shared.INTERVAL:
            continue
        shown = now
        text = (
            f"{value:.3f} nats by CTSM-v · truth {truth:g} nats\n"
            f"D = {dim} · step {step} of {steps} · seed {seed} · {now - begin:.1f} s"
        )
        metrics = {"dim": dim, "value": value, "truth": truth, "step": step, "seed": seed}
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
    x, y = read_rows(x), read_rows(y)
    num_rows, num_columns = len(x), x.shape[1] + y.shape[1]
    if num_rows > MAX_ROWS or num_columns > MAX_COLUMNS:
        raise UserError(
            f"Got {num_rows} rows and {num_columns} columns. Upload at most {MAX_ROWS} rows and "
            f"{MAX_COLUMNS} columns."
        )
    begin = time.perf_counter()
    estimate = mutual_information(x, y, kind and kind(random_state=seed), seed)
    size = f"{num_rows} rows, {x.shape[1]} + {y.shape[1]} columns"
    label = f"{data} · {size} · seed {seed} · {time.perf_counter() - begin:.1f} s"
    metrics = {**estimate.figures(), "data": data, "seed": seed}
    return estimate.plot(), f"{estimate.summary()}\n{label}", metrics


def build(seed: int, device: str) -> None:
    """Add the tab and its endpoints /mi_paper and /mi to the page."""
    gr.Markdown(PAPER_HINT)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            buttons = shared.start_and_stop("Learn")
            with gr.Accordion("Advanced", open=False):
                dim = gr.Dropdown(DIMENSIONS, value=DIMENSIONS[0], label="Dimension D")
                steps = shared.slider(50, MAX_STEPS, 2_000, label="Training steps")
                seeds = shared.seed_box(seed)
        with gr.Column(scale=2, min_width=320):
            text = shared.text_box(label="Learned mutual information", lines=2)
            outputs = [shared.plot_box(label="Estimate by step"), text, shared.metrics_box()]
    shared.start_by(buttons, mi_paper, [dim, steps, seeds], outputs, "research", device=device)

    gr.Markdown(ROWS_HINT)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            data = [
                gr.File(label=name, file_types=SUFFIXES, type="filepath", height=100)
                for name in "XY"
            ]
            estimator = gr.Dropdown(list(ESTIMATORS), value="automatic", label="Estimator")
            seeds = shared.seed_box(seed)
            buttons = shared.start_and_stop("Estimate")
        with gr.Column(scale=2, min_width=320):
            text = shared.text_box(label="Estimate", lines=5)
            outputs = [shared.plot_box(label="Log ratios"), text, shared.metrics_box()]
    event = shared.start_by(buttons, mi, [*data, estimator, seeds], outputs, "research")
    actions = [a for file in data for a in (file.upload, file.clear, file.delete)]
    shared.clear_on([*actions, estimator.input], [event], outputs)
