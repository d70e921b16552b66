"""The mutual information of the paper's paired Gaussians, learned beside its true value."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.numerics.tensors import seeded
from ebm_app.ratios.plots import plot_approach
from ebm_app.ratios.points import EvaluationPoints, as_numbers
from ebm_app.ratios.problems import INFORMATION_PROBLEMS, PAPER_INFORMATION
from ebm_app.ratios.training import VALIDATION, RatioTrainer, RatioTraining

from ..runs import empty_by, start_and_stop, start_by
from ..shared import (
    MAX_EVERY,
    Iterations,
    Rate,
    Seed,
    eval_every,
    metrics_box,
    plot_box,
    progress,
    text_box,
    training_boxes,
)

NUM_POINTS = 2_000
DIMS = list(PAPER_INFORMATION)
METHODS = {"CTSM-v": "ctsm_v_time1", "CTSM": "ctsm_time1", "TSM": "tsm_stein"}
#: shown in the metrics, by the name of a figure
FIGURES = {
    **{"divergence": "mutual_information", "matrix": "matrix", "error": "error"},
    **{"step": "step", "step_ms": "step_ms"},
}
Curves = dict[str, list[dict[str, Any]]]
ShownCurves = tuple[Figure, str, dict[str, Any]]


def mi_gaussian(
    dim: int,
    methods: list[str],
    learning_rate: Rate,
    iterations: Iterations,
    seed: Seed,
    *,
    device: str = "cpu",
) -> Iterator[ShownCurves]:
    """Learn the mutual information of paired Gaussians by methods in turns, on the same draws;
    returns a plot of the estimate against the step, a text, and the metrics in nats.

    The estimate is the mean learned log ratio over draws of the joint density that stay the same;
    "matrix" is -1/2 log det of the learned covariance.
    """
    problem = INFORMATION_PROBLEMS[choose("problem", f"mi_d{dim}", INFORMATION_PROBLEMS)]
    if not methods:
        raise UserError("there is no method to train: choose at least one")
    rows = {method: METHODS[choose("method", method, METHODS)] for method in methods}
    every = eval_every(iterations, MAX_EVERY * DIMS[0] // dim)
    training = RatioTraining(iterations, problem.training.batch_size, every)
    points = EvaluationPoints(problem.pair, NUM_POINTS, seeded(device, 0, VALIDATION))
    given = (seed, learning_rate, training, points.criterion, device)
    trainers = [RatioTrainer(problem.methods[key], problem.pair, *given) for key in rows.values()]
    settings = {"dim": dim, "learning_rate": learning_rate, "iterations": iterations, "seed": seed}
    curves: Curves = {method: [] for method in rows}
    truth, begin = problem.kl_divergence, time.perf_counter()
    for evaluations in zip(*(trainer.run() for trainer in trainers), strict=True):
        for curve, evaluation in zip(curves.values(), evaluations, strict=True):
            ms = 1e3 * evaluation.seconds / evaluation.step if evaluation.step else None
            numbers = as_numbers(evaluation.metrics)
            curve.append({"step": evaluation.step, **numbers, "step_ms": ms})
        text = report(curves, settings, truth, time.perf_counter() - begin)
        found = {
            method: {shown: curve[-1].get(name) for name, shown in FIGURES.items()}
            for method, curve in curves.items()
        }
        plot = plot_approach(curves, truth, iterations)
        yield plot, text, {**settings, "truth": truth, "methods": found}


def report(curves: Curves, settings: Mapping[str, Any], truth: float, seconds: float) -> str:
    """Where the methods stand, a line for each after a first one on all."""
    step, total = min(curve[-1]["step"] for curve in curves.values()), settings["iterations"]
    head = [f"{total} steps" if step == total else progress(step, total)]
    head += [f"D = {settings['dim']}", f"true value {truth:g} nats"]
    head += [f"seed {settings['seed']}", f"{seconds:.1f} s"]
    lines = [" · ".join(head)]
    for method, curve in curves.items():
        value, ms = curve[-1]["divergence"], curve[-1]["step_ms"]
        if value is None:
            lines.append(f"{method}: no longer finite: lower the learning rate")
        else:
            time_of_step = "" if ms is None else f" · {ms:.1f} ms a step"
            lines.append(f"{method}: {value:.3f} nats{time_of_step}")
    return "\n".join(lines)


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoint /mi_gaussian."""
    gr.Markdown(
        "D/2 correlated pairs, whose mutual information is D/4 nats. "
        "One covariance matrix is learned by each method, on the same draws."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            dim = gr.Dropdown([(f"D = {dim}", dim) for dim in DIMS], value=DIMS[0], label="Size")
            methods = gr.CheckboxGroup(list(METHODS), value=["CTSM-v"], label="Methods")
            numbers = training_boxes(5e-3, 500, seed)
            buttons = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Run", 4)
            plot = plot_box("Estimate and time of a step")
            shown = [plot, text, metrics_box()]

    inputs = [dim, methods, *numbers]
    event = start_by(buttons, mi_gaussian, inputs, shown, {"device": device})
    empty_by([dim.change, methods.change], [event], shown)
