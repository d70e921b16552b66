"""Toy tab: learn the log density ratio of a problem with a known answer."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor

from ebm_app.ratios.methods import TimeScoreRatio
from ebm_app.ratios.problems import TEST, TOY_PROBLEMS, VALIDATION, EvaluationPoints, train
from ebm_app.utils.fields import finite_or_none
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

from .shared import (
    clear_on,
    metrics_box,
    plot_box,
    seed_box,
    slider,
    start_and_stop,
    start_by,
    text_box,
)

MAX_ITERATIONS, MIN_RATE, MAX_RATE = 5_000, 1e-5, 0.1
#: Points at which the estimate is compared with the true log ratio
NUM_POINTS = 600
#: Max steps between evaluations. A stopped run ends at the next one.
EVAL_EVERY = 50
#: Width of a plot in inches, narrow enough for a phone, and dots per inch
WIDTH, DPI = 4.2, 130
PROBLEM, METHOD = "gaussians_d2", "ctsm_v_time1"
HINT = (
    "Learn the log density ratio log p₁/p₀ of two known densities, and compare it with the exact "
    "one. Problems and methods are those of the paper's tables: Gaussians or mixtures, and TSM, "
    "CTSM or CTSM-v with a weighting."
)
#: Plot, text and metrics
ToyOutputs = tuple[Figure | None, str, dict[str, Any]]


def toy(
    problem: str,
    method: str,
    learning_rate: float,
    iterations: int,
    seed: int,
    *,
    device: str = "cpu",
) -> Iterator[ToyOutputs]:
    """Train a density ratio estimator on a toy problem.

    Returns a plot, a text and the metrics. During training, the metrics are those on validation
    points. The last ones are those of the best step, on test points.
    """
    chosen = TOY_PROBLEMS[choose("problem", problem, TOY_PROBLEMS)]
    choose(f"method of {problem}", method, chosen.methods)
    every = min(EVAL_EVERY, math.ceil(iterations / 10))
    chosen = replace(chosen, iterations=iterations, eval_every=every)
    label = f"{problem} · {method}"
    yield None, f"Starting · {label}", {}
    begin, curve = time.perf_counter(), []
    settings = {
        "problem": problem,
        "method": method,
        "learning_rate": learning_rate,
        "iterations": iterations,
        "seed": seed,
    }
    points, test_points = (
        EvaluationPoints(chosen.pair, NUM_POINTS, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )

    def outputs(
        head: str, ratio: TimeScoreRatio, points: EvaluationPoints, facts: dict[str, Any]
    ) -> ToyOutputs:
        estimate = ratio.log_ratio(points.x)
        metrics = {**settings, **facts, **finite_or_none(points.metrics(estimate))}
        metrics["divergence_truth"] = points.metrics(points.truth)["divergence"]
        plot = plot_trial(curve, points.truth, estimate, label)
        head = f"{head} · {label} · seed {seed} · {time.perf_counter() - begin:.1f} s"
        return plot, f"{head}\n{result_text(metrics)}", metrics

    for state in train(chosen, method, seed, learning_rate, points, device):
        curve.append((state.step, state.metrics["error"]))
        facts = {"step": state.step, "best_step": state.best_step}
        head = f"Step {state.step} of {iterations}"
        yield outputs(head, state.ratio, points, {**facts, "points": "validation"})
    yield outputs(f"{iterations} steps", state.best, test_points, {**facts, "points": "test"})


def result_text(metrics: Mapping[str, Any]) -> str:
    """Return the error of an estimate in words."""
    if metrics["error"] is None:
        return "The estimate is not finite. Lower the learning rate."
    error = metrics["error"] ** 0.5
    return f"Root mean square error {error:.3g} nats on {metrics['points']} points"


def plot_trial(
    curve: Sequence[tuple[int, float]], truth: Tensor, estimate: Tensor, title: str
) -> Figure:
    """Plot the squared error in nats^2 by step, and estimated against true log ratios."""
    figure = Figure(figsize=(WIDTH, 5.1), dpi=DPI, layout="constrained")
    figure.suptitle(title, x=0.02, ha="left", fontsize="small")
    error, ratio = figure.subplots(2, height_ratios=(2, 3))
    error.semilogy(*zip(*curve, strict=True), color="C1", marker=".", ms=4)
    error.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    # at least two decades, without minor labels, which would overlap
    low, high = np.log10(error.get_ylim())
    error.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
    error.yaxis.set_minor_formatter(NullFormatter())
    truth, estimate = truth.cpu().numpy(), estimate.cpu().numpy()
    margin = 0.1 * np.ptp(truth)
    limits = truth.min() - margin, truth.max() + margin
    # points outside the frame are drawn on its edge
    ratio.plot(truth, estimate.clip(*limits), ls="", marker=".", ms=3, alpha=0.5, color="C0")
    ratio.plot(limits, limits, color="black", ls="--", lw=1, label="exact")
    ratio.set(xlim=limits, ylim=limits)
    ratio.legend(fontsize="small", loc="upper left")
    error.set_title("squared error, nats², by step", fontsize="small")
    ratio.set_title("estimated against true log ratio, nats", fontsize="small")
    return figure


def build(seed: int, device: str) -> None:
    """Add the tab and its endpoint /toy to the page."""
    gr.Markdown(HINT)
    methods = sorted({name for problem in TOY_PROBLEMS.values() for name in problem.methods})
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            problem = gr.Dropdown(list(TOY_PROBLEMS), value=PROBLEM, label="Problem")
            method = gr.Dropdown(methods, value=METHOD, label="Method")
            bounds = {"minimum": MIN_RATE, "maximum": MAX_RATE, "step": 1e-4}
            rate = gr.Number(1e-2, label="Learning rate", **bounds)
            iterations = slider(1, MAX_ITERATIONS, 600, "Iterations")
            seeds = seed_box(seed)
            buttons = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Run", 3)
            outputs = [plot_box("Log ratio"), text, metrics_box()]
    inputs = [problem, method, rate, iterations, seeds]
    event = start_by(buttons, toy, inputs, outputs, "research", device=device)
    clear_on([problem.input, method.input], [event], outputs)
