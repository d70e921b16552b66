"""Toy tab: learn the log density ratio of a problem with a known answer."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import methods_of
from ebm_app.ratios.pairs import TOY_2D, DensityPair, standard_normal
from ebm_app.ratios.plots import plot_pair, plot_planes, plot_trial
from ebm_app.ratios.points import TIMES, EvaluationPoints, Planes, density_planes
from ebm_app.ratios.problems import TOY_PROBLEMS
from ebm_app.ratios.training import TEST, VALIDATION, RatioTraining, train
from ebm_app.utils.fields import finite_or_none
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

from .shared import (
    AT_ONCE,
    metrics_box,
    plot_box,
    progress,
    seed_box,
    slider,
    start_and_stop,
    start_by,
    text_box,
)

MAX_ITERATIONS, MIN_RATE, MAX_RATE = 5_000, 1e-5, 0.1
#: Points at which the estimate is compared with the true log ratio
NUM_POINTS = 600
OBJECTIVES = {"ctsm_v": "CTSM-v", "ctsm": "CTSM", "tsm": "TSM"}
WEIGHTINGS = {
    "uniform": "uniform weighting",
    "stein": "Stein score weighting",
    "time0": "inverse-variance weighting, c from the data",
    "time1": "inverse-variance weighting, c = 1",
}
PAIRS: dict[str, DensityPair] = {
    **{name: problem.pair for name, problem in TOY_PROBLEMS.items() if "sigma" not in name},
    **{name: DensityPair(standard_normal(2), density) for name, density in TOY_2D.items()},
}
#: Label of each path, and the sigma of a Schrödinger bridge or None
PATHS: dict[str, tuple[str, float | None]] = {
    "variance_preserving": ("variance preserving", None),
    "bridge_sigma1": ("Schrödinger bridge, σ = 1", 1.0),
    "bridge_sigma1.41": ("Schrödinger bridge, σ = √2", math.sqrt(2)),
}
METHODS = tuple(methods_of(None))
HINT = (
    "Learn the log density ratio log p₁/p₀ of two known densities, and compare it with the exact "
    "one. p₀ is the reference at t = 0, p₁ the data at t = 1."
)
#: Plot, text, metrics, and the learned densities of a two-dimensional problem
ToyOutputs = tuple[Figure, str, dict[str, Any], Planes | None]


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

    Returns a plot, a text and the metrics. During training, the metrics are those on validation
    points. The last ones are those of the best step, on test points.
    """
    pair = PAIRS[choose("problem", problem, PAIRS)]
    path_label, sigma = PATHS[choose(f"path of {problem}", path, paths_of(problem))]
    estimator = methods_of(sigma)[choose("method", method, METHODS)]
    training = RatioTraining(iterations, eval_every=min(100, math.ceil(iterations / 10)))
    label = f"{problem_label(problem)} · {path_label}"
    yield plot_pair(pair), f"Starting · {label}", {}, None
    begin, curve, name = time.perf_counter(), [], method_label(method)
    settings = {
        "problem": problem,
        "path_kind": path,  # gradio's client treats a dict with the key "path" as a file
        "method": method,
        "learning_rate": learning_rate,
        "iterations": iterations,
        "seed": seed,
    }
    points, test_points = (
        EvaluationPoints(pair, NUM_POINTS, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )

    def outputs(
        head: str, ratio: TimeScoreRatio, points: EvaluationPoints, facts: dict[str, Any]
    ) -> ToyOutputs:
        planes, estimate = None, ratio.log_ratio(points.x)
        if pair.dim == 2:
            planes = density_planes(pair, ratio, make_generator(device, 0, VALIDATION))
        metrics = points.metrics(estimate) | ({} if planes is None else {"mass": planes.mass})
        metrics["divergence_truth"] = points.metrics(points.truth)["divergence"]
        metrics = {**settings, **facts, **finite_or_none(metrics)}
        plot = plot_trial(curve, points.truth, estimate, f"{name}\n{problem_label(problem)}")
        head = f"{head} · {label} · seed {seed} · {time.perf_counter() - begin:.1f} s"
        return plot, f"{head}\n{name}: {result_text(metrics)}", metrics, planes

    for state in train(estimator, pair, seed, learning_rate, training, points, device):
        curve.append((state.step, state.metrics["error"]))
        facts = {"step": state.step, "best_step": state.best_step}
        head = progress(state.step, iterations)
        yield outputs(head, state.ratio, points, {**facts, "points": "validation"})
    yield outputs(f"{iterations} steps", state.best, test_points, {**facts, "points": "test"})


def paths_of(problem: str) -> list[str]:
    """Return the names of the paths that suit a problem. The variance-preserving path needs a
    standard normal reference, which the mixtures lack."""
    is_mixture = problem.startswith("mixtures")
    return [name for name, (_, sigma) in PATHS.items() if sigma or not is_mixture]


def method_label(method: str) -> str:
    """Return a method in words."""
    objective, _, weighting = method.rpartition("_")
    return f"{OBJECTIVES[objective]} · {WEIGHTINGS[weighting]}"


def problem_label(problem: str) -> str:
    """Return a problem in words."""
    kind, _, size = problem.partition("_")
    if kind == "gaussians":
        return f"two Gaussians, D = {size.removeprefix('d')}"
    return f"mixtures, D = 20, k = {size.removeprefix('k')}" if size else f"{kind}, D = 2"


def result_text(metrics: Mapping[str, Any]) -> str:
    """Return the error of an estimate in words."""
    if metrics["error"] is None:
        return "the estimate is not finite; lower the learning rate"
    text = (
        f"root mean square error {metrics['error'] ** 0.5:.3g} nats on {metrics['points']} points"
    )
    mass = metrics.get("mass")
    return text if mass is None else f"{text} · the learned p₁ integrates to {mass:.3g}"


def build(seed: int, device: str) -> None:
    """Add the tab and its endpoint /toy to the page."""
    gr.Markdown(HINT)
    first = next(iter(PAIRS))
    problems = [(problem_label(name), name) for name in PAIRS]
    methods = [(method_label(name), name) for name in METHODS]

    def path_options(problem: str) -> dict[str, Any]:
        names = paths_of(problem)
        return {"choices": [(PATHS[name][0], name) for name in names], "value": names[0]}

    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            problem = gr.Dropdown(problems, value=first, label="Problem")
            # all paths at first, so that the API accepts them with any problem
            paths = [(label, name) for name, (label, _) in PATHS.items()]
            path = gr.Dropdown(paths, value=paths_of(first)[0], label="Path from p₀ to p₁")
            method = gr.Dropdown(methods, value="ctsm_v_time1", label="Method")
            bounds = {"minimum": MIN_RATE, "maximum": MAX_RATE, "step": 1e-4}
            rate = gr.Number(1e-2, label="Learning rate", **bounds)
            iterations = slider(1, MAX_ITERATIONS, 600, "Iterations")
            seeds = seed_box(seed)
            buttons = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Run", 3)
            with gr.Column() as plane:
                when = gr.Slider(*TIMES[:: len(TIMES) - 1], 1, step=TIMES[1], label="t")
                moment = plot_box("Densities and time score at t")
            plot, planes = plot_box("Log ratio", value=plot_pair(PAIRS[first])), gr.State()
            outputs = [plot, text, metrics_box(), planes]

    def select(problem: str) -> list[dict[str, Any]]:
        return [
            gr.update(**path_options(problem)),
            gr.update(visible=PAIRS[problem].dim == 2),
        ]

    inputs = [problem, path, method, rate, iterations, seeds]
    event = start_by(buttons, toy, inputs, outputs, "research", device=device)
    problem.change(select, problem, [path, plane], **AT_ONCE)
    # not path.change, which a new problem triggers too
    triggers = [problem.change, path.input, method.input]
    gr.on(triggers, None, cancels=[event], **AT_ONCE)
    # show draws of the problem instead of an outdated result
    gr.on(
        triggers,
        lambda name: [plot_pair(PAIRS[name]), "", None, None],
        problem,
        outputs,
        **AT_ONCE,
    )
    # every step of a run changes its text
    triggers = [text.change, when.change]
    gr.on(triggers, lambda p, t: p and plot_planes(p, t), [planes, when], moment, **AT_ONCE)
