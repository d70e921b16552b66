"""Toy page: learn the log density ratio of a problem with a known answer."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.ratios.methods import TimeScoreRatio, methods_of
from ebm_app.ratios.plots import density_planes, plot_pair, plot_planes, plot_trial
from ebm_app.ratios.problems import TEST, TOY_PROBLEMS, VALIDATION, EvaluationPoints, train
from ebm_app.utils.fields import Positive, PositiveInt, Seed, check_argument, finite_or_none
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

from . import shared

MAX_ITERATIONS = 5_000
#: Points at which the estimate is compared with the true log ratio
NUM_POINTS = 600
#: Max steps between evaluations. A stopped run ends at the next one.
EVAL_EVERY = 100
#: Problems by label
PROBLEMS = {
    **{f"two Gaussians, D = {dim}": f"gaussians_d{dim}" for dim in (2, 5, 10, 20)},
    **{f"mixtures, D = 20, k = {k}": f"mixtures_k{k}" for k in (0.5, 1, 2)},
}
#: Sigma of the bridge of each path, None for the variance-preserving path, which needs a standard
#: normal p_0 and so excludes the mixtures
PATHS = {"variance preserving": None, "Schrödinger bridge": 1.0}
#: Methods with their weightings of time
METHODS = {"CTSM-v": "ctsm_v_time1", "CTSM": "ctsm_time1", "TSM": "tsm_stein"}
INTRO = (
    "# Learn a density ratio with a known answer\n"
    f"A network learns log p₁/p₀ of two known densities by {shared.PAPER}: p₀ is the reference at "
    "t = 0, p₁ the data at t = 1. The plot compares the learned with the true log ratio."
)
WORDS = (
    "TSM is time score matching; CTSM matches the time score conditional on the data, CTSM-v a "
    "vector of it. The variance-preserving path needs a standard normal p₀, which the mixtures "
    "lack."
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
    chosen = TOY_PROBLEMS[PROBLEMS[choose("problem", problem, PROBLEMS)]]
    choose(f"path of {problem}", path, paths_of(problem))
    name = METHODS[choose("method", method, METHODS)]
    learning_rate = check_argument(Positive, "learning rate", learning_rate)
    seed = check_argument(Seed, "seed", seed)
    iterations = check_argument(PositiveInt, "iterations", iterations)
    chosen = replace(chosen, methods=methods_of(PATHS[path]), eval_every=EVAL_EVERY)
    pair, begin, curve = chosen.pair, time.perf_counter(), []
    points, test_points = (
        EvaluationPoints(pair, NUM_POINTS, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )

    def outputs(
        step: int, ratio: TimeScoreRatio, points: EvaluationPoints, name: str
    ) -> ToyOutputs:
        estimate = ratio.log_ratio(points.x)
        metrics = {"step": step, "points": name, **finite_or_none(points.metrics(estimate))}
        metrics["divergence_truth"] = points.metrics(points.truth)["divergence"]
        result = "the estimate is not finite; lower the learning rate"
        if metrics["error"] is not None:
            error = metrics["error"] ** 0.5
            result = f"root mean square error {error:.3g} nats on {name} points"
        run = f"{problem} · {path} · seed {seed} · {time.perf_counter() - begin:.1f} s"
        text = f"Step {step} of {iterations} · {run}\n{method}: {result}"
        plot = plot_trial(curve, points.truth, estimate, f"{method}\n{problem}")
        return plot, text, None, metrics

    for state in train(chosen.shorten(iterations), name, seed, learning_rate, points, device):
        curve.append((state.step, state.metrics["error"]))
        yield outputs(state.step, state.ratio, points, "validation")
    plot, text, densities, metrics = outputs(state.best_step, state.best, test_points, "test")
    if pair.dim == 2:
        planes = density_planes(pair, state.best, make_generator(device, 0, TEST))
        metrics |= finite_or_none({"mass": planes.mass})
        text += f" · the learned p₁ integrates to {planes.mass:.3g}"
        densities = plot_planes(planes)
    yield plot, text, densities, metrics


def paths_of(problem: str) -> list[str]:
    """Return the paths for a problem."""
    is_mixture = PROBLEMS[problem].startswith("mixtures")
    return [path for path, sigma in PATHS.items() if sigma or not is_mixture]


def select_problem(problem: str) -> list[Any]:
    """Return the paths of a problem, and a plot of its draws instead of an outdated result."""
    paths = paths_of(problem)
    pair = TOY_PROBLEMS[PROBLEMS[problem]].pair
    return [gr.update(choices=paths, value=paths[0]), plot_pair(pair), "", None]


def build(seed: int, device: str) -> None:
    """Add the page and its endpoint /toy."""
    gr.Markdown(INTRO)
    first = next(iter(PROBLEMS))
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            problem = gr.Dropdown([*PROBLEMS], value=first, label="Problem")
            iterations = shared.slider(1, MAX_ITERATIONS, 2_000, label="Iterations")
            controls = gr.Column()
            with gr.Accordion("Advanced", open=False):
                # all paths at first, so that the API accepts them with any problem
                path = gr.Dropdown([*PATHS], value=paths_of(first)[0], label="Path from p₀ to p₁")
                method = gr.Dropdown([*METHODS], value="CTSM-v", label="Method")
                gr.Markdown(WORDS)
                rate = gr.Number(1e-2, label="Learning rate", minimum=1e-5, maximum=0.1)
                seeds = shared.seed_box(seed)
        with gr.Column(scale=2, min_width=300):
            text = shared.text_box(label="Run", lines=3)
            draws = plot_pair(TOY_PROBLEMS[PROBLEMS[first]].pair)
            plot = shared.plot_box(draws, label="Log ratio")
            densities = shared.plot_box(label="Densities p_t and time score")
            outputs = [plot, text, densities, shared.metrics_box()]
    inputs = [problem, path, method, rate, iterations, seeds]
    with controls:
        event = shared.start_by("Train", toy, inputs, outputs, "research", device=device)
    shown = [path, plot, text, densities]
    problem.change(select_problem, problem, shown, cancels=[event], **shared.AT_ONCE)
