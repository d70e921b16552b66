"""The tab that learns the log ratio of a toy problem while the visitor watches."""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.io.registry import choose
from ebm_app.ratios.plots import plot_pair, plot_trial
from ebm_app.ratios.training import RatioTraining
from ebm_app.ratios.trials import METHODS, PAIRS, Snapshot, Trial, paths_of, watch

from .runs import AT_ONCE, start_and_stop, start_by
from .shared import (
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

NAMES = {"ctsm_v": "CTSM-v", "ctsm": "CTSM", "tsm": "TSM"}
WEIGHTINGS = {
    "uniform": "uniform weighting",
    "stein": "Stein score weighting",
    "time0": "time score weighting, c of the data",
    "time1": "time score weighting, c = 1",
}
PATHS = {
    "variance_preserving": "variance preserving",
    "bridge_sigma1": "Schrödinger bridge, σ = 1",
    "bridge_sigma1.41": "Schrödinger bridge, σ = √2",
}
HINT = (
    "Learn log p₁/p₀ of two known densities, and see how near it comes. "
    "p₀ is the reference at t = 0, p₁ the data at t = 1. Problems in the plane are learned in "
    "seconds; those of 5 and more dimensions are the paper's, and harder."
)
ShownTrial = tuple[Figure, str, dict[str, Any]]


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


def method_label(method: str) -> str:
    """A method in words."""
    objective, _, weighting = method.rpartition("_")
    return f"{NAMES[objective]} · {WEIGHTINGS[weighting]}"


def problem_label(problem: str) -> str:
    """A problem in words."""
    kind, _, size = problem.partition("_")
    if kind == "gaussians":
        return f"two Gaussians, D = {size.removeprefix('d')}"
    return f"mixtures, D = 20, k = {size.removeprefix('k')}" if size else f"{kind}, D = 2"


def report(shot: Snapshot, seconds: float) -> str:
    """Where a trial stands, in two lines."""
    trial, total, found = shot.trial, shot.trial.training.iterations, shot.scalars
    head = f"{total} steps" if shot.is_final else progress(shot.step, total)
    head = [head, problem_label(trial.problem), PATHS[trial.path], f"seed {trial.seed}"]
    if found["loss"] is None or found["error"] is None:
        told = "no longer finite: lower the learning rate"
    else:
        told = f"off by {found['error'] ** 0.5:.3g} nats (root mean square)"
    if found.get("mass") is not None:
        told += f" · learned p₁ integrates to {found['mass']:.3g}"
    return f"{' · '.join(head)} · {seconds:.1f} s\n{method_label(trial.method)}: {told}"


def metrics(shot: Snapshot) -> dict[str, Any]:
    """The trial as JSON; errors in nats^2, KL divergences in nats."""
    trial = shot.trial
    points = shot.evaluator.points
    return {
        "problem": trial.problem,
        "path_kind": trial.path,  # gradio's client takes whatever has a "path" for a file
        "method": trial.method,
        "learning_rate": trial.learning_rate,
        "iterations": trial.training.iterations,
        "seed": trial.seed,
        "step": shot.step,
        "best_step": shot.best_step,
        "judged_on": "test" if shot.is_final else "validation",
        **shot.scalars,
        "divergence_truth": points.metrics(points.truth)["divergence"].item(),
    }


def preview(problem: str) -> Figure:
    """What is to be learned."""
    return plot_pair(PAIRS[choose("problem", problem, PAIRS)])


def path_choices(problem: str) -> list[tuple[str, str]]:
    """The paths that suit a problem, in words and by name."""
    return [(PATHS[name], name) for name in paths_of(problem)]


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoint /toy."""
    gr.Markdown(HINT)
    first = next(iter(PAIRS))
    names = sorted(PAIRS, key=lambda name: not problem_label(name).endswith("D = 2"))
    problems = [(problem_label(name), name) for name in names]
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

    def of_problem(problem: str) -> dict[str, Any]:
        paths = path_choices(problem)
        return gr.update(choices=paths, value=paths[0][1])

    inputs = [problem, path, method, *numbers]
    event = start_by(buttons, toy, inputs, shown, {"device": device})
    problem.change(of_problem, problem, path, **AT_ONCE)
    # not by a change of the path, which another problem brings about too
    triggers = [problem.change, path.input, method.input]
    gr.on(triggers, None, cancels=[event], **AT_ONCE)
    # the draws of the problem in place of what was learned by another choice
    gr.on(triggers, lambda name: [preview(name), "", None], problem, shown, **AT_ONCE)
