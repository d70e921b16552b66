"""The mutual information of the paper's paired Gaussians, learned beside its true value."""

import time
from collections.abc import Iterator, Mapping, Sequence
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

from ..buttons import empty_by, start_and_stop, start_by, stop_by, stopped
from ..explanations import explained
from ..training import (
    MAX_EVERY,
    checked,
    eval_every,
    metrics_box,
    progress,
    run_box,
    show_first,
    training_boxes,
)

NUM_POINTS = 2_000
DIMS = list(PAPER_INFORMATION)
METHODS = {"CTSM-v": "ctsm_v_time1", "CTSM": "ctsm_time1", "TSM": "tsm_stein"}
Curves = dict[str, list[dict[str, Any]]]
ShownCurves = tuple[Figure, str, dict[str, Any]]


def approach(
    dim: int,
    methods: Sequence[str],
    learning_rate: float,
    iterations: int,
    seed: int,
    device: str = "cpu",
) -> Iterator[ShownCurves]:
    """Train the methods in turns on the same draws: (plot, text, metrics) at every evaluation.

    The estimate is the mean learned log ratio over draws of the joint density that stay the same;
    "matrix" is -1/2 log det of the learned covariance. Both in nats.

    Args:
        dim: one of ``DIMS``. methods: of the keys of ``METHODS``.

    Raises:
        UserError: for no method, an unknown name, and an invalid number.
    """
    name = f"mi_d{dim}"
    choose("problem", name, INFORMATION_PROBLEMS)
    if not methods:
        raise UserError("there is no method to train: choose at least one")
    rows = {method: METHODS[choose("method", method, METHODS)] for method in methods}
    numbers = checked(learning_rate, iterations, seed)
    problem = INFORMATION_PROBLEMS[name]
    every = eval_every(numbers.iterations, MAX_EVERY * DIMS[0] // dim)
    training = RatioTraining(numbers.iterations, problem.training.batch_size, every)
    points = EvaluationPoints(problem.pair, NUM_POINTS, seeded(device, 0, VALIDATION))
    given = (numbers.seed, numbers.learning_rate, training, points.criterion, device)
    trainers = {
        method: RatioTrainer(problem.methods[key], problem.pair, *given)
        for method, key in rows.items()
    }
    settings = {"dim": dim, **numbers._asdict()}
    curves: Curves = {method: [] for method in rows}
    begin = time.perf_counter()
    for evaluations in zip(*(trainer.run() for trainer in trainers.values()), strict=True):
        for curve, evaluation in zip(curves.values(), evaluations, strict=True):
            ms = 1e3 * evaluation.seconds / evaluation.step if evaluation.step else None
            curve.append(
                {"step": evaluation.step, **as_numbers(evaluation.metrics), "step_ms": ms}
            )
        text = report(curves, settings, problem.kl_divergence, time.perf_counter() - begin)
        plot = plot_approach(curves, problem.kl_divergence, numbers.iterations)
        yield plot, text, metrics(curves, settings, problem.kl_divergence)


def report(curves: Curves, settings: Mapping[str, Any], truth: float, seconds: float) -> str:
    """Where the methods stand, a line for each after a first one on all."""
    step, total = min(curve[-1]["step"] for curve in curves.values()), settings["iterations"]
    head = [progress(step, total, is_done=step == total)]
    head += [f"D = {settings['dim']}", f"true value {truth:g} nats"]
    head += [f"seed {settings['seed']}", f"{seconds:.1f} s"]
    return "\n".join([" · ".join(head), *(_line(*item) for item in curves.items())])


def _line(method: str, curve: Sequence[dict[str, Any]]) -> str:
    last = curve[-1]
    if last["divergence"] is None:
        return f"{method}: no longer finite: lower the learning rate"
    time_of_step = "" if last["step_ms"] is None else f" · {last['step_ms']:.1f} ms a step"
    return f"{method}: {last['divergence']:.3f} nats{time_of_step}"


def metrics(curves: Curves, settings: Mapping[str, Any], truth: float) -> dict[str, Any]:
    """The runs as JSON; in nats, errors in nats^2."""
    names = {"divergence": "mutual_information", "matrix": "matrix", "error": "error"}
    names |= {"step": "step", "step_ms": "step_ms"}
    methods = {
        method: {shown: curve[-1].get(name) for name, shown in names.items()}
        for method, curve in curves.items()
    }
    return {**settings, "truth": truth, "methods": methods}


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoint /mi_gaussian.

    Args:
        seed: the one to begin with. device: where runs take place.
    """
    gr.Markdown(
        "D/2 correlated pairs, whose mutual information is D/4 nats. "
        "One covariance matrix is learned by each method, on the same draws."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            dim = gr.Dropdown([(f"D = {dim}", dim) for dim in DIMS], value=DIMS[0], label="Size")
            methods = gr.CheckboxGroup(list(METHODS), value=["CTSM-v"], label="Methods")
            numbers = training_boxes(5e-3, 500, seed)
            start, stop = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = run_box()
            plot = gr.Plot(label="Estimate and time of a step", format="png", visible=False)
            shown = [plot, text, metrics_box()]

    @explained
    def run(
        dim: int, methods: list[str], learning_rate: float, iterations: int, seed: int
    ) -> Iterator[ShownCurves]:
        """Learn the mutual information of paired Gaussians; returns a plot of the estimate against
        the step, a text, and the metrics."""
        yield from approach(dim, methods, learning_rate, iterations, seed, device)

    inputs = [dim, methods, *numbers]
    event = start_by(show_first(start, plot), run, inputs, shown, api_name="mi_gaussian")
    stop_by(stop, [event], stopped, [text])
    empty_by([dim.change, methods.change], [event], shown)
