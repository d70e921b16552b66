"""The tab that learns the log ratio of a toy problem while the visitor watches."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import gradio as gr
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.ratios.estimators import TimeScoreRatio
from ebm_app.ratios.methods import methods_of
from ebm_app.ratios.pairs import DensityPair, standard_normal
from ebm_app.ratios.plots import plot_pair, plot_planes, plot_trial
from ebm_app.ratios.points import TIMES, DensityGrid, EvaluationPoints, Planes
from ebm_app.ratios.problems import TOY_PROBLEMS
from ebm_app.ratios.toy_2d import TOY_2D
from ebm_app.ratios.training import TEST, VALIDATION, Evaluation, RatioTraining, train
from ebm_app.utils.fields import finite_or_none
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

from .runs import AT_ONCE, start_and_stop, start_by
from .shared import Seed, metrics_box, plot_box, progress, seed_box, slider, text_box

MAX_ITERATIONS, RATES, NUM_POINTS = 5_000, (1e-5, 0.1), 600

NAMES = {"ctsm_v": "CTSM-v", "ctsm": "CTSM", "tsm": "TSM"}
WEIGHTINGS = {
    "uniform": "uniform weighting",
    "stein": "Stein score weighting",
    "time0": "time score weighting, c of the data",
    "time1": "time score weighting, c = 1",
}
PAIRS: dict[str, DensityPair] = {
    **{name: problem.pair for name, problem in TOY_PROBLEMS.items() if "sigma" not in name},
    **{name: DensityPair(standard_normal(2), data) for name, data in TOY_2D.items()},
}
#: in words, and the sigma of the Schrodinger bridge; None is the variance-preserving path
PATHS: dict[str, tuple[str, float | None]] = {
    "variance_preserving": ("variance preserving", None),
    "bridge_sigma1": ("Schrödinger bridge, σ = 1", 1.0),
    "bridge_sigma1.41": ("Schrödinger bridge, σ = √2", math.sqrt(2)),
}
METHODS = tuple(methods_of(None))
HINT = (
    "Learn log p₁/p₀ of two known densities, and see how near it comes. "
    "p₀ is the reference at t = 0, p₁ the data at t = 1."
)
#: a plot, a text, the metrics, and on the plane what was learned
ShownTrial = tuple[Figure, str, dict[str, Any], Planes | None]


def toy(
    problem: str,
    path: str,
    method: str,
    learning_rate: Annotated[float, Ge(RATES[0]), Le(RATES[1])],
    iterations: Annotated[int, Ge(1), Le(MAX_ITERATIONS)],
    seed: Seed,
    *,
    device: str = "cpu",
) -> Iterator[ShownTrial]:
    """Train a method on a toy problem; returns a plot, a text, and the metrics."""
    pair = PAIRS[choose("problem", problem, PAIRS)]
    suited = [name for _, name in paths_of(problem)]
    words, sigma = PATHS[choose(f"path of {problem}", path, suited)]
    chosen = methods_of(sigma)[choose("method", method, METHODS)]
    training = RatioTraining(iterations, eval_every=min(100, math.ceil(iterations / 10)))
    label, name = f"{problem_label(problem)} · {words}", method_label(method)
    yield plot_pair(pair), f"Starting · {label}", {}, None
    begin, curve, title = time.perf_counter(), [], f"{name}\n{problem_label(problem)}"
    given = {
        "problem": problem,
        "path_kind": path,  # gradio's client takes whatever has a "path" for a file
        "method": method,
        "learning_rate": learning_rate,
        "iterations": iterations,
        "seed": seed,
    }

    points, fresh = (
        EvaluationPoints(pair, NUM_POINTS, make_generator(device, 0, stream))
        for stream in (VALIDATION, TEST)
    )
    seen = make_generator(device, 0, VALIDATION)
    grid = DensityGrid(pair, chosen.path, seen) if pair.dim == 2 else None

    def shown(at: Evaluation, ratio: TimeScoreRatio, points: EvaluationPoints) -> ShownTrial:
        planes, estimate = grid and grid.planes(ratio), ratio.log_ratio(points.x)
        found = points.metrics(estimate) | ({} if planes is None else {"mass": planes.mass})
        found["divergence_truth"] = points.metrics(points.truth)["divergence"]
        part, head = "validation", progress(at.step, iterations)
        if points is fresh:
            part, head = "test", f"{iterations} steps"
        done = {"step": at.step, "best_step": at.best_step, "judged_on": part}
        found = {**given, **done, **finite_or_none(found)}
        head = f"{head} · {label} · seed {seed} · {time.perf_counter() - begin:.1f} s"
        plot = plot_trial(curve, points.truth, estimate, title)
        return plot, f"{head}\n{name}: {verdict(found)}", found, planes

    for at in train(chosen, pair, seed, learning_rate, training, points.judge, device):
        curve.append((at.step, at.metrics["error"]))
        yield shown(at, at.ratio, points)
    yield shown(at, at.best, fresh)


def paths_of(problem: str) -> list[tuple[str, str]]:
    """The paths that suit a problem, in words and by name: the variance-preserving one starts at
    N(0, I)."""
    is_any = problem.startswith("mixtures")
    return [(words, name) for name, (words, sigma) in PATHS.items() if sigma or not is_any]


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
    if PAIRS[problem].dim == 2:
        return "in the plane: learned in seconds"
    return "one of the paper's, whose 20,000 steps leave errors of 1 to 16 nats; fewer leave more"


def verdict(found: Mapping[str, Any]) -> str:
    """How near a training is, by its metrics."""
    if found["error"] is None:
        return "no longer finite: lower the learning rate"
    told = f"off by {found['error'] ** 0.5:.3g} nats at held-out points (root mean square)"
    mass = found.get("mass")
    return told if mass is None else f"{told} · learned p₁ integrates to {mass:.3g}"


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoint /toy."""
    gr.Markdown(HINT)
    first = next(iter(PAIRS))
    problems = [
        (problem_label(name), name) for name in sorted(PAIRS, key=lambda name: PAIRS[name].dim > 2)
    ]
    methods = [(method_label(name), name) for name in METHODS]
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            given = {"value": first, "label": "Problem", "info": expected(first)}
            problem = gr.Dropdown(problems, **given)
            paths = paths_of(first)
            path = gr.Dropdown(paths, value=paths[0][1], label="Path from p₀ to p₁")
            info = "objective and weighting"
            method = gr.Dropdown(methods, value="ctsm_v_time1", label="Method", info=info)
            low, high = RATES
            rate = gr.Number(1e-2, label="Learning rate", minimum=low, maximum=high, step=1e-4)
            iterations = slider(1, MAX_ITERATIONS, 600, "Iterations")
            seeds = seed_box(seed)
            buttons = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = text_box("Run", 3)
            with gr.Column() as plane:
                when = gr.Slider(*TIMES[:: len(TIMES) - 1], 1, step=TIMES[1], label="t")
                moment = plot_box("Densities and time score at t")
            planes = gr.State()
            shown = [
                plot_box("Log ratio", value=plot_pair(PAIRS[first])),
                text,
                metrics_box(),
                planes,
            ]

    def of_problem(problem: str) -> list[dict[str, Any]]:
        paths = paths_of(problem)
        return [
            gr.update(choices=paths, value=paths[0][1]),
            gr.update(info=expected(problem)),
            gr.update(visible=PAIRS[problem].dim == 2),
        ]

    inputs = [problem, path, method, rate, iterations, seeds]
    event = start_by(buttons, toy, inputs, shown, {"device": device})
    problem.change(of_problem, problem, [path, problem, plane], **AT_ONCE)
    # not by a change of the path, which another problem brings about too
    triggers = [problem.change, path.input, method.input]
    gr.on(triggers, None, cancels=[event], **AT_ONCE)
    # the draws of the problem in place of what was learned by another choice
    gr.on(
        triggers, lambda name: [plot_pair(PAIRS[name]), "", None, None], problem, shown, **AT_ONCE
    )
    # a run writes its text with every step
    triggers = [text.change, when.change]
    gr.on(triggers, lambda p, t: p and plot_planes(p, t), [planes, when], moment, **AT_ONCE)
