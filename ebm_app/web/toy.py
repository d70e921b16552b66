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

from ebm_app.ratios.methods import TimeScoreRatio, methods_of
from ebm_app.ratios.pairs import DensityPair
from ebm_app.ratios.planes import TIMES, Planes, density_planes
from ebm_app.ratios.problems import TEST, TOY_PROBLEMS, VALIDATION, EvaluationPoints, train
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
#: Max steps between evaluations. A stopped run ends at the next one.
EVAL_EVERY = 50
#: Width of a plot in inches, narrow enough for a phone, and dots per inch
WIDTH, DPI = 4.2, 130
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
HINT = (
    "Learn the log density ratio log p₁/p₀ of two known densities, and compare it with the exact "
    "one. p₀ is the reference at t = 0, p₁ the data at t = 1."
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
        head: str,
        ratio: TimeScoreRatio,
        points: EvaluationPoints,
        facts: dict[str, Any],
        planes: Planes | None = None,
    ) -> ToyOutputs:
        estimate = ratio.log_ratio(points.x)
        values = points.metrics(estimate) | ({} if planes is None else {"mass": planes.mass})
        metrics = {**settings, **facts, **finite_or_none(values)}
        metrics["divergence_truth"] = points.metrics(points.truth)["divergence"]
        plot = plot_trial(curve, points.truth, estimate, f"{name}\n{problem_label(problem)}")
        head = f"{head} · {label} · seed {seed} · {time.perf_counter() - begin:.1f} s"
        densities = None if planes is None else plot_planes(planes)
        return plot, f"{head}\n{name}: {result_text(metrics)}", densities, metrics

    chosen = replace(
        PROBLEMS[problem],
        methods=methods_of(sigma),
        iterations=iterations,
        eval_every=min(EVAL_EVERY, math.ceil(iterations / 10)),
    )
    for state in train(chosen, method, seed, learning_rate, points, device):
        curve.append((state.step, state.metrics["error"]))
        facts = {"step": state.step, "best_step": state.best_step}
        head = progress(state.step, iterations)
        yield outputs(head, state.ratio, points, {**facts, "points": "validation"})
    facts, planes = {**facts, "points": "test"}, None
    if pair.dim == 2:
        planes = density_planes(pair, state.best, make_generator(device, 0, TEST))
    yield outputs(f"{iterations} steps", state.best, test_points, facts, planes)


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
    text = (
        f"root mean square error {metrics['error'] ** 0.5:.3g} nats on {metrics['points']} points"
    )
    return (
        f"{text} · the learned p₁ integrates to {metrics['mass']:.3g}"
        if "mass" in metrics
        else text
    )


def plot_pair(pair: DensityPair, num: int = 400) -> Figure:
    """Plot draws of both densities in the first two coordinates."""
    figure = Figure(figsize=(WIDTH, 3.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    generator = make_generator("cpu", 0, VALIDATION)
    for draws, label, marker, color in (
        (pair.p0.sample(num, generator), "$p_0$, reference", "o", "0.6"),
        (pair.p1.sample(num, generator), "$p_1$, data", "x", "C0"),
    ):
        axes.plot(*draws[:, :2].T.numpy(), ls="", marker=marker, ms=3, color=color, label=label)
    axes.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


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


def plot_planes(planes: Planes) -> Figure:
    """Plot the draws, the learned density and the time score at ``TIMES``, a column each.

    The time score is blue where p_t decreases in t and red where it increases.
    """
    figure = Figure(figsize=(WIDTH, 2.9), dpi=DPI, layout="constrained")
    rows = figure.subplots(3, len(TIMES))
    half = np.quantile(abs(planes.time_scores), 0.95)
    signed = {"cmap": "RdBu_r", "vmin": -half, "vmax": half}
    labels = ("draws", "learned", "time score")
    for axes, values, label in zip(rows, planes[1:], labels, strict=True):
        axes[0].set_ylabel(label, fontsize="small")
        for column, time_, value, drawn in zip(axes, TIMES, values, planes.drawn, strict=True):
            density = {"cmap": "magma", "vmin": 0, "vmax": drawn.max()}
            colours = signed if label == "time score" else density
            column.imshow(value, origin="lower", extent=planes.limits, **colours)
            column.set(xticks=[], yticks=[])
            if label == "draws":
                column.set_title(f"t = {time_:g}", fontsize="small")
    return figure


def build(seed: int, device: str) -> None:
    """Add the tab and its endpoint /toy to the page."""
    gr.Markdown(HINT)
    first = next(iter(PROBLEMS))
    problems = [(problem_label(name), name) for name in PROBLEMS]
    methods = [(method_label(name), name) for name in METHODS]
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
            densities = plot_box("Densities p_t and time score")
            plot = plot_box("Log ratio", value=plot_pair(PROBLEMS[first].pair))
            outputs = [plot, text, densities, metrics_box()]

    def select_path(problem: str) -> dict[str, Any]:
        names = paths_of(problem)
        return gr.update(choices=[(PATHS[name][0], name) for name in names], value=names[0])

    inputs = [problem, path, method, rate, iterations, seeds]
    event = start_by(buttons, toy, inputs, outputs, "research", device=device)
    problem.change(select_path, problem, path, **AT_ONCE)
    # not path.change, which a new problem also triggers
    triggers = [problem.change, path.input, method.input]
    gr.on(triggers, None, cancels=[event], **AT_ONCE)
    # show draws of the problem instead of an outdated result
    gr.on(
        triggers,
        lambda name: [plot_pair(PROBLEMS[name].pair), "", None, None],
        problem,
        outputs,
        **AT_ONCE,
    )
