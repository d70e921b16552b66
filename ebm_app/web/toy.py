"""Toy page: learn the log density ratio of a problem with a known answer."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.ratios.methods import TimeScoreRatio, methods_of
from ebm_app.ratios.planes import density_planes
from ebm_app.ratios.plots import plot_pair, plot_planes, plot_trial
from ebm_app.ratios.problems import TEST, TOY_PROBLEMS, VALIDATION, EvaluationPoints, train
from ebm_app.utils.fields import finite_or_none
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

from . import shared

MAX_ITERATIONS, MIN_RATE, MAX_RATE = 5_000, 1e-5, 0.1
#: Points at which the estimate is compared with the true log ratio
NUM_POINTS = 600
#: Max steps between evaluations. A stopped run ends at the next one.
EVAL_EVERY = 100
OBJECTIVES = {"ctsm_v": "CTSM-v", "ctsm": "CTSM", "tsm": "TSM"}
WEIGHTINGS = {
    "uniform": "uniform weighting",
    "stein": "Stein score weighting",
    "time0": "inverse-variance weighting, c from the data",
    "time1": "inverse-variance weighting, c = 1",
}
PROBLEMS = {name: problem for name, problem in TOY_PROBLEMS.items() if "sigma" not in name}
#: Label of each path, and the sigma of a Schrödinger bridge or None
PATHS: dict[str, tuple[str, float | None]] = {
    "variance_preserving": ("variance preserving", None),
    "bridge_sigma1": ("Schrödinger bridge, σ = 1", 1.0),
    "bridge_sigma1.41": ("Schrödinger bridge, σ = √2", math.sqrt(2)),
}
METHODS = tuple(methods_of(None))
INTRO = (
    "# Learn a density ratio with a known answer\n"
    "A network learns log p₁/p₀ of two known densities from their draws: p₀ is the reference at "
    "t = 0, p₁ the data at t = 1. The plot compares the learned with the true log ratio."
)
WORDS = (
    "TSM is time score matching; CTSM matches the time score conditional on the data, CTSM-v a "
    "vector of it. The weighting says how much each time counts."
)
#: Plot of the log ratio, text, plot of the densities in two dimensions, and metrics
ToyOutputs = tuple[Figure, str, Figure | None, dict[str, Any]]


def toy(
    problem: str,
    path: str,
    method: str,
    learning_rate: float,
    iterations: int,
    seed: int,
    *,
    device: str = "cpu",
) -> Iterator[ToyOutputs]:
    """Train a density ratio estimator on a toy problem.

    Returns a plot of the log ratio, a text, at the end of a two-dimensional problem a plot of the
    learned densities, and the metrics. They are computed on validation points during training, and
    for the best step on test points at the end.
    """
    pair = PROBLEMS[choose("problem", problem, PROBLEMS)].pair
    path_label, sigma = PATHS[choose(f"path of {problem}", path, paths_of(problem))]
    choose("method", method, METHODS)
    name, label = method_label(method), f"{problem_label(problem)} · {path_label}"
    yield plot_pair(pair), f"Starting · {label}", None, {}
    begin, curve = time.perf_counter(), []
    # "path_kind", because gradio's client treats a dict with the key "path" as a file
    settings = {"problem": problem, "path_kind": path, "method": method, "seed": seed}
    settings |= {"learning_rate": learning_rate, "iterations": iterations}
    points, test_points = (
        EvaluationPoints(pair, NUM_POINTS, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )

    def outputs(
        head: str, ratio: TimeScoreRatio, points: EvaluationPoints, facts: dict[str, Any]
    ) -> ToyOutputs:
        estimate = ratio.log_ratio(points.x)
        metrics = settings | facts | finite_or_none(points.metrics(estimate))
        metrics["divergence_truth"] = points.metrics(points.truth)["divergence"]
        plot = plot_trial(curve, points.truth, estimate, f"{name}\n{problem_label(problem)}")
        head = f"{head} · {label} · seed {seed} · {time.perf_counter() - begin:.1f} s"
        return plot, f"{head}\n{name}: {result_text(metrics)}", None, metrics

    methods = methods_of(sigma)
    chosen = replace(PROBLEMS[problem], methods=methods, eval_every=EVAL_EVERY)
    for state in train(chosen.shorten(iterations), method, seed, learning_rate, points, device):
        curve.append((state.step, state.metrics["error"]))
        facts = {"step": state.step, "best_step": state.best_step}
        head = f"Step {state.step} of {iterations}"
        yield outputs(head, state.ratio, points, {**facts, "points": "validation"})
    facts["points"] = "test"
    plot, text, densities, metrics = outputs(f"{iterations} steps", state.best, test_points, facts)
    if pair.dim == 2:
        planes = density_planes(pair, state.best, make_generator(device, 0, TEST))
        metrics |= finite_or_none({"mass": planes.mass})
        text += f" · the learned p₁ integrates to {planes.mass:.3g}"
        densities = plot_planes(planes)
    yield plot, text, densities, metrics


def paths_of(problem: str) -> list[str]:
    """Return the names of the paths for a problem. The variance-preserving path needs a standard
    normal reference, which the mixtures lack."""
    is_mixture = problem.startswith("mixtures")
    return [name for name, (_, sigma) in PATHS.items() if sigma or not is_mixture]


def method_label(method: str) -> str:
    """Return the label of a method."""
    objective, _, weighting = method.rpartition("_")
    return f"{OBJECTIVES[objective]} · {WEIGHTINGS[weighting]}"


def problem_label(problem: str) -> str:
    """Return the label of a problem."""
    kind, _, size = problem.partition("_")
    if kind == "gaussians":
        return f"two Gaussians, D = {size.removeprefix('d')}"
    return f"mixtures, D = 20, k = {size.removeprefix('k')}"


def result_text(metrics: Mapping[str, Any]) -> str:
    """Return the error of an estimate as text."""
    if metrics["error"] is None:
        return "the estimate is not finite; lower the learning rate"
    error = metrics["error"] ** 0.5
    return f"root mean square error {error:.3g} nats on {metrics['points']} points"


def build(seed: int, device: str) -> None:
    """Add the page and its endpoint /toy."""
    gr.Markdown(INTRO)
    first = next(iter(PROBLEMS))
    problems = [(problem_label(name), name) for name in PROBLEMS]
    methods = [(method_label(name), name) for name in METHODS]
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            problem = gr.Dropdown(problems, value=first, label="Problem")
            iterations = shared.slider(1, MAX_ITERATIONS, 600, label="Iterations")
            controls = gr.Column()
            with gr.Accordion("Advanced", open=False):
                # all paths at first, so that the API accepts them with any problem
                paths = [(label, name) for name, (label, _) in PATHS.items()]
                path = gr.Dropdown(paths, value=paths_of(first)[0], label="Path from p₀ to p₁")
                method = gr.Dropdown(methods, value="ctsm_v_time1", label="Method")
                gr.Markdown(WORDS)
                bounds = {"minimum": MIN_RATE, "maximum": MAX_RATE, "step": 1e-4}
                rate = gr.Number(1e-2, label="Learning rate", **bounds)
                seeds = shared.seed_box(seed)
        with gr.Column(scale=2, min_width=300):
            text = shared.text_box(label="Run", lines=3)
            plot = shared.plot_box(plot_pair(PROBLEMS[first].pair), label="Log ratio")
            densities = shared.plot_box(label="Densities p_t and time score")
            outputs = [plot, text, densities, shared.metrics_box()]

    def select_path(problem: str) -> dict[str, Any]:
        names = paths_of(problem)
        return gr.update(choices=[(PATHS[name][0], name) for name in names], value=names[0])

    inputs = [problem, path, method, rate, iterations, seeds]
    with controls:
        event = shared.start_by("Train", toy, inputs, outputs, "research", device=device)
    problem.change(select_path, problem, path, **shared.AT_ONCE)
    # not path.change, which a new problem also triggers
    triggers = [problem.change, path.input, method.input]
    shared.clear_on(triggers, [event], outputs[1:])
    # show draws of the problem instead of an outdated result
    gr.on(triggers, lambda name: plot_pair(PROBLEMS[name].pair), problem, plot, **shared.AT_ONCE)
