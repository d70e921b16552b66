"""The tab that learns the log ratio of a toy problem while the visitor watches."""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.io.registry import choose
from ebm_app.ratios.training import RatioTraining
from ebm_app.ratios.trial_plots import plot_pair, plot_trial
from ebm_app.ratios.trials import METHODS, PAIRS, Trial, paths_of, watch

from ..runs import AT_ONCE, explained, start_and_stop, start_by
from ..shared import (
    Iterations,
    Rate,
    Seed,
    eval_every,
    metrics_box,
    plot_box,
    text_box,
    training_boxes,
)
from .report import PATHS, method_label, metrics, problem_label, report

HINT = (
    "Learn log p₁/p₀ of two known densities, and see how near it comes. "
    "p₀ is the reference at t = 0, p₁ the data at t = 1."
)
ShownTrial = tuple[Figure, str, dict[str, Any] | None]


def toy(
    problem: str,
    path: str,
    method: str,
    learning_rate: Rate,
    iterations: Iterations,
    seed: Seed,
    *,
    device: str = "cpu",
) -> Iterator[ShownTrial]:
    """Train a method on a toy problem; returns a plot, a text, and the metrics."""
    training = RatioTraining(iterations, eval_every=eval_every(iterations))
    trial = Trial(problem, path, method, learning_rate, training, seed)
    yield preview(problem), f"Starting · {problem_label(problem)} · {PATHS[path]}", {}
    begin = time.perf_counter()
    for shot in watch(trial, device):
        plot = plot_trial(shot, f"{method_label(method)}\n{problem_label(problem)}")
        yield plot, report(shot, time.perf_counter() - begin), metrics(shot)


def preview(problem: str) -> Figure:
    """What is to be learned."""
    return plot_pair(PAIRS[choose("problem", problem, PAIRS)])


def path_choices(problem: str) -> list[tuple[str, str]]:
    """The paths that suit a problem, in words and by name."""
    return [(PATHS[name], name) for name in paths_of(problem)]


def emptied(problem: str) -> ShownTrial:
    """The draws of a problem in place of what was learned by another choice."""
    return preview(problem), "", None


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoint /toy."""
    gr.Markdown(HINT)
    first = next(iter(PAIRS))
    problems = [(problem_label(name), name) for name in PAIRS]
    methods = [(method_label(name), name) for name in METHODS]
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            problem = gr.Dropdown(problems, value=first, label="Problem")
            paths = path_choices(first)
            path = gr.Dropdown(paths, value=paths[0][1], label="Path from p₀ to p₁")
            info = "objective and weighting"
            method = gr.Dropdown(methods, value="ctsm_v_time1", label="Method", info=info)
            numbers = training_boxes(2e-3, 1_000, seed)
            buttons = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Run", 3)
            shown = [plot_box("Log ratio", value=preview(first)), text, metrics_box()]

    def of_problem(problem: str) -> tuple[Any, ...]:
        paths = path_choices(problem)
        return gr.update(choices=paths, value=paths[0][1]), *emptied(problem)

    run, inputs = explained(toy, device=device), [problem, path, method, *numbers]
    event = start_by(buttons, run, inputs, shown, api_name="toy")
    # not by a change of the path, which another problem brings about too
    triggers = [path.input, method.input]
    gr.on([problem.change, *triggers], None, cancels=[event], **AT_ONCE)
    gr.on(triggers, emptied, problem, shown, **AT_ONCE)
    problem.change(of_problem, problem, [path, *shown], **AT_ONCE)
