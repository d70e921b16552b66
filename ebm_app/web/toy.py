"""The tab that learns the log ratio of a toy problem while the visitor watches."""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.io.registry import choose
from ebm_app.ratios.plots import Planes, planes_of, plot_pair, plot_planes, plot_trial
from ebm_app.ratios.points import TIMES
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
    "p₀ is the reference at t = 0, p₁ the data at t = 1."
)
#: what the paper's protocol, 20,000 steps of CTSM-v, leaves of its harder problems, in nats
PAPERS = {
    **{"gaussians_d5": 0.9, "gaussians_d10": 1.3, "gaussians_d15": 3, "gaussians_d20": 6.5},
    **{"mixtures_k0.5": 13, "mixtures_k1": 13, "mixtures_k2": 16},
}
#: a plot, a text, the metrics, and on the plane what ``at_time`` shows
ShownTrial = tuple[Figure, str, dict[str, Any], Planes | None]


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
    every = eval_every(iterations)
    training = RatioTraining(iterations, eval_every=every)
    trial = Trial(problem, path, method, learning_rate, training, seed)
    yield preview(problem), f"Starting · {problem_label(problem)} · {PATHS[path]}", {}, None
    begin = time.perf_counter()
    for shot in watch(trial, device):
        # plots take as long as the steps between two of them
        if not (shot.is_final or every == 1 or shot.step % (2 * every) == 0):
            continue
        plot = plot_trial(shot, f"{method_label(method)}\n{problem_label(problem)}")
        text = report(shot, time.perf_counter() - begin)
        yield plot, text, metrics(shot), planes_of(shot)


def at_time(planes: Planes | None, time: float) -> Figure | None:
    """What has been learned on the plane, at a time."""
    return planes and plot_planes(planes, time)


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


def expected(problem: str) -> str:
    """How near a training may come."""
    if problem in PAPERS:
        return (
            "one of the paper's, whose 20,000 steps leave an error of about "
            f"{PAPERS[problem]:g} nats; fewer leave more"
        )
    return "in the plane: learned in seconds"


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
    problems = [(problem_label(name), name) for name in sorted(PAIRS, key=PAPERS.__contains__)]
    methods = [(method_label(name), name) for name in METHODS]
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            given = {"value": first, "label": "Problem", "info": expected(first)}
            problem = gr.Dropdown(problems, **given)
            paths = path_choices(first)
            path = gr.Dropdown(paths, value=paths[0][1], label="Path from p₀ to p₁")
            info = "objective and weighting"
            method = gr.Dropdown(methods, value="ctsm_v_time1", label="Method", info=info)
            numbers = training_boxes(1e-2, 600, seed)
            buttons = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Run", 3)
            with gr.Column() as plane:
                when = gr.Slider(*TIMES[:: len(TIMES) - 1], 1, step=TIMES[1], label="t")
                moment = plot_box("Densities and time score at t")
            planes = gr.State()
            shown = [plot_box("Log ratio", value=preview(first)), text, metrics_box(), planes]

    def of_problem(problem: str) -> list[dict[str, Any]]:
        paths = path_choices(problem)
        return [
            gr.update(choices=paths, value=paths[0][1]),
            gr.update(info=expected(problem)),
            gr.update(visible=problem not in PAPERS),
        ]

    inputs = [problem, path, method, *numbers]
    event = start_by(buttons, toy, inputs, shown, {"device": device})
    problem.change(of_problem, problem, [path, problem, plane], **AT_ONCE)
    # not by a change of the path, which another problem brings about too
    triggers = [problem.change, path.input, method.input]
    gr.on(triggers, None, cancels=[event], **AT_ONCE)
    # the draws of the problem in place of what was learned by another choice
    gr.on(triggers, lambda name: [preview(name), "", None, None], problem, shown, **AT_ONCE)
    # a run writes its text with every step
    gr.on([text.change, when.change], at_time, [planes, when], moment, **AT_ONCE)
