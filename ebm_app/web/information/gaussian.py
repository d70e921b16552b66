"""Learning the mutual information of the paper's paired Gaussians, whose true value is known."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr
import torch
from matplotlib.figure import Figure

from ebm_app.errors import UserError
from ebm_app.numerics import seeded
from ebm_app.ratios.studies.information_plots import plot_approach
from ebm_app.ratios.studies.problems import INFORMATION_PROBLEMS, PAPER_INFORMATION
from ebm_app.ratios.studies.study import Points, row
from ebm_app.ratios.training import VALIDATION, RatioTrainer, RatioTraining
from ebm_app.registry import choose

from ..ending import stop_by
from ..live import (
    HIDDEN,
    MAX_EVERY,
    MAX_ITERATIONS,
    RATES,
    SHOWN,
    eval_every,
    real,
    train_and_stop,
    training_numbers,
    whole,
)
from ..shared import MAX_SEED, ONE_AT_A_TIME, RUNNING, explained, stopped

NUM_POINTS = 2_000
DIMS = list(PAPER_INFORMATION)
METHODS = {"CTSM-v": "ctsm_v_time1", "CTSM": "ctsm_time1", "TSM": "tsm_stein"}
Curves = dict[str, list[dict[str, Any]]]
Output = tuple[Figure, str, dict[str, Any]]


def approach(
    dim: int,
    methods: Sequence[str],
    learning_rate: float,
    iterations: int,
    seed: int,
    device: str = "cpu",
) -> Iterator[Output]:
    """Train the methods in turns on the same draws: (plot, text, figures) at every evaluation.

    The estimate is the mean learned log ratio over draws of the joint density that stay the same;
    "matrix" is -1/2 log det of the learned covariance. Both in nats.

    Args:
        dim: one of ``DIMS``. methods: of the keys of ``METHODS``.

    Raises:
        UserError: for no method, and a name or a number that is none.
    """
    name = f"mi_d{dim}"
    choose("problem", name, INFORMATION_PROBLEMS)
    if not methods:
        raise UserError("there is no method to train: choose at least one")
    rows = {method: METHODS[choose("method", method, METHODS)] for method in methods}
    rate = real("the learning rate", learning_rate, *RATES)
    iterations = whole("iterations", iterations, 1, MAX_ITERATIONS)
    settings = {"dim": dim, "learning_rate": rate, "iterations": iterations}
    settings["seed"] = whole("the seed", seed, 0, MAX_SEED)
    problem = INFORMATION_PROBLEMS[name]
    every = eval_every(iterations, MAX_EVERY * DIMS[0] // dim)
    training = RatioTraining(iterations, problem.training.batch_size, every)
    points = Points(problem.pair, NUM_POINTS, seeded(device, 0, VALIDATION))
    trainers = {
        method: RatioTrainer(
            *(problem.methods[key], problem.pair, [settings["seed"]], torch.tensor([rate])),
            training,
            points.criterion,
            device,
        )
        for method, key in rows.items()
    }
    curves: Curves = {method: [] for method in rows}
    begin = time.perf_counter()
    for evaluations in zip(*(trainer.run() for trainer in trainers.values()), strict=True):
        for curve, evaluation in zip(curves.values(), evaluations, strict=True):
            ms = 1e3 * evaluation.seconds / evaluation.step if evaluation.step else None
            curve.append({"step": evaluation.step, **row(evaluation.figures, 0), "step_ms": ms})
        text = report(curves, settings, problem.divergence, time.perf_counter() - begin)
        plot = plot_approach(curves, problem.divergence, iterations)
        yield plot, text, figures(curves, settings, problem.divergence)


def report(curves: Curves, settings: Mapping[str, Any], truth: float, seconds: float) -> str:
    """Where the methods stand, a line for each after a first one on all."""
    step, total = min(curve[-1]["step"] for curve in curves.values()), settings["iterations"]
    head = [f"{total} steps" if step == total else f"{RUNNING} {step} of {total}"]
    head += [f"D = {settings['dim']}", f"true value {truth:g} nats"]
    head += [f"seed {settings['seed']}", f"{seconds:.1f} s"]
    return "\n".join([" · ".join(head), *(_line(*item) for item in curves.items())])


def _line(method: str, curve: Sequence[dict[str, Any]]) -> str:
    last = curve[-1]
    if last["divergence"] is None:
        return f"{method}: not finite any more: lower the learning rate"
    time_of_step = "" if last["step_ms"] is None else f" · {last['step_ms']:.1f} ms a step"
    return f"{method}: {last['divergence']:.3f} nats{time_of_step}"


def figures(curves: Curves, settings: Mapping[str, Any], truth: float) -> dict[str, Any]:
    """What is known of the runs, for machines; in nats, errors in nats^2."""
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
            numbers = training_numbers(5e-3, 500, seed)
            start, stop = train_and_stop()
        with gr.Column(scale=2, min_width=320):
            text = gr.Textbox(label="Run", interactive=False, lines=4, placeholder="Not run yet")
            plot = gr.Plot(label="Estimate and time of a step", format="png", visible=False)
            with gr.Accordion("Figures", open=False):
                found = gr.JSON(label="Figures", show_label=False)

    @explained
    def run(
        dim: int, methods: list[str], learning_rate: float, iterations: int, seed: int
    ) -> Iterator[Output]:
        """Learn the mutual information of paired Gaussians; returns a plot of the estimate against
        the step, a text, and the figures."""
        yield from approach(dim, methods, learning_rate, iterations, seed, device)

    shown = start.click(lambda: SHOWN, outputs=plot, queue=False, api_visibility="private")
    event = shown.then(
        run,
        [dim, methods, *numbers],
        [plot, text, found],
        api_name="mi_gaussian",
        show_progress="hidden",
        **ONE_AT_A_TIME,
    )
    stop_by(stop, [event], stopped, [text])
    dim.change(lambda: (HIDDEN, "", None), outputs=[plot, text, found], api_visibility="private")
