"""The tab that learns the log ratio of a toy problem before the visitor's eyes."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
from generate import RUNNING, stopped
from live import eval_every, real, whole
from matplotlib.figure import Figure
from shared import MAX_SEED, ONE_AT_A_TIME, explained

from ebm_app.errors import UserError, choose
from ebm_app.ratios.training import RatioTraining
from ebm_app.studies.trial_plots import plot_pair, plot_trial
from ebm_app.studies.trials import METHODS, PAIRS, Snapshot, Trial, paths_of, watch

MAX_ITERATIONS, RATES = 5_000, (1e-5, 0.1)
NONE = "none"
Output = tuple[Figure, Figure | None, str, dict[str, Any]]
NAMES = {"ctsm_v": "CTSM-v", "ctsm": "CTSM", "tsm": "TSM"}
WEIGHTINGS = {
    "uniform": "uniform weighting",
    "stein": "Stein score weighting",
    "time0": "time score weighting, c of the data",
    "time1": "time score weighting, c = 1",
    "stratified": "c = 1, stratified times",
    "mixture": "c = 1, over Gaussian mixtures",
}
BASELINES = {"nce": "NCE, one classifier", "tre": "TRE, eight classifiers"}
PATHS = {
    "variance_preserving": "variance preserving",
    "bridge_sigma1": "Schrödinger bridge, σ = 1",
    "bridge_sigma1.41": "Schrödinger bridge, σ = √2",
}


def method_label(method: str) -> str:
    """A method in words."""
    objective, _, weighting = method.rpartition("_")
    return BASELINES.get(method) or f"{NAMES[objective]} · {WEIGHTINGS[weighting]}"


def problem_label(problem: str) -> str:
    """A problem in words."""
    kind, _, size = problem.partition("_")
    if kind == "gaussians":
        return f"two Gaussians, D = {size.removeprefix('d')}"
    return f"mixtures, D = 20, k = {size.removeprefix('k')}" if size else f"{kind}, D = 2"


def train(
    problem: str,
    path: str,
    methods: Sequence[str],
    learning_rate: float,
    iterations: int,
    seed: int,
    device: str = "cpu",
) -> Iterator[Output]:
    """Train one or two methods on a problem: (plot, plot, text, figures) at every evaluation.

    Whoever stops iterating stops the training, and keeps what was shown last.

    Args:
        methods: of ``METHODS``; they see the same draws.

    Raises:
        UserError: for a name or a number that is none, and one method twice.
    """
    iterations = whole("iterations", iterations, 1, MAX_ITERATIONS)
    settings = {
        "learning_rate": real("the learning rate", learning_rate, *RATES),
        "training": RatioTraining(iterations, eval_every=eval_every(iterations)),
        "seed": whole("the seed", seed, 0, MAX_SEED),
    }
    if len(set(methods)) < len(methods):
        raise UserError("both methods are the same: choose another to compare with, or none")
    trials = [Trial(problem, path, method, **settings) for method in methods]
    yield preview(problem), None, f"Starting · {problem_label(problem)} · {PATHS[path]}", {}
    begin = time.perf_counter()
    for shots in zip(*(watch(trial, device) for trial in trials), strict=True):
        first, second = [*map(plot_trial, shots), None][:2]
        yield first, second, report(shots, time.perf_counter() - begin), figures(shots)


def report(shots: Sequence[Snapshot], seconds: float) -> str:
    """Where the trials stand, a line for each after a first one on all."""
    trial, step = shots[0].trial, min(shot.step for shot in shots)
    is_done = all(shot.is_final for shot in shots)
    total = trial.training.iterations
    head = [f"{total} steps" if is_done else f"{RUNNING} {step} of {total}"]
    head += [
        problem_label(trial.problem),
        PATHS[trial.path],
        f"seed {trial.seed}",
        f"{seconds:.1f} s",
    ]
    return "\n".join([" · ".join(head), *map(_line, shots)])


def _line(shot: Snapshot) -> str:
    found = shot.scalars
    parts = [f"best weights, of step {shot.best_step}" if shot.is_final else f"step {shot.step}"]
    if found["loss"] is None or found["error"] is None:
        parts.append("not finite any more: lower the learning rate")
    else:
        parts.append(f"loss {found['loss']:.4g}")
        parts.append(
            f"error {found['error']:.4g} nats²" if shot.has_truth else "no true log ratio known"
        )
    if found.get("mass") is not None:
        parts.append(f"learned p₁ integrates to {found['mass']:.3g}")
    if shot.step_ms is not None:
        parts.append(f"{shot.step_ms:.1f} ms a step")
    return f"{method_label(shot.trial.method)}: " + " · ".join(parts)


def figures(shots: Sequence[Snapshot]) -> dict[str, Any]:
    """What is known of the trials, for machines; errors in nats^2, divergences in nats."""
    trial = shots[0].trial
    settings = {  # gradio's client takes whatever has a "path" for a file
        **{"problem": trial.problem, "path_kind": trial.path},
        **{"learning_rate": trial.learning_rate, "iterations": trial.training.iterations},
        "seed": trial.seed,
    }
    return {**settings, "methods": {shot.trial.method: _figures(shot) for shot in shots}}


def _figures(shot: Snapshot) -> dict[str, Any]:
    found = dict(shot.scalars)
    if not shot.has_truth:
        found["error"] = None  # the best weights were chosen by the loss
    truth = shot.judge.points.truth
    if truth is not None:
        found["divergence_truth"] = shot.judge.points.figures(truth[None])["divergence"].item()
    judged = "test" if shot.is_final else "validation"
    return {
        **{"step": shot.step, "best_step": shot.best_step, "judged_on": judged},
        **found,
        "step_ms": shot.step_ms,
    }


def preview(problem: str) -> Figure:
    """What is to be learned."""
    return plot_pair(PAIRS[choose("problem", problem, PAIRS)])


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoint /toy.

    Args:
        seed: the one to begin with. device: where runs take place.
    """
    gr.Markdown(
        "Learn log p₁/p₀ of two known densities, and see how near it comes. "
        "p₀ is the reference at t = 0, p₁ the data at t = 1."
    )
    problems = [(problem_label(name), name) for name in PAIRS]
    methods = [(method_label(name), name) for name in METHODS]
    first = next(iter(PAIRS))
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            problem = gr.Dropdown(problems, value=first, label="Problem")
            path = gr.Dropdown(_paths(first), value=paths_of(first)[0], label="Path from p₀ to p₁")
            method = gr.Dropdown(
                methods, value="ctsm_v_time1", label="Method", info="objective and weighting"
            )
            second = gr.Dropdown(
                [("none", NONE), *methods],
                value=NONE,
                label="Compare with",
                info="a second method, on the same draws",
            )
            learning_rate = gr.Number(
                2e-3, label="Learning rate", minimum=RATES[0], maximum=RATES[1], step=1e-4
            )
            iterations = gr.Slider(1, MAX_ITERATIONS, value=1_000, step=1, label="Iterations")
            seed_box = gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)
            with gr.Row():
                start = gr.Button("Train", variant="primary")
                stop = gr.Button("Stop")
        with gr.Column(scale=2, min_width=320):
            text = gr.Textbox(label="Run", interactive=False, lines=3, placeholder="Not run yet")
            with gr.Row():
                plot = gr.Plot(preview(first), label="Method", format="png")
                other = gr.Plot(label="Compared with", format="png", visible=False)
            with gr.Accordion("Figures", open=False):
                found = gr.JSON(label="Figures", show_label=False)

    @explained
    def run(
        problem: str,
        path: str,
        method: str,
        second: str,
        learning_rate: float,
        iterations: int,
        seed: int,
    ) -> Iterator[Output]:
        """Train one or two methods on a toy problem; returns a plot for either, a text, and the
        figures."""
        chosen = [method] if second == NONE else [method, second]
        yield from train(problem, path, chosen, learning_rate, iterations, seed, device)

    event = start.click(
        run,
        [problem, path, method, second, learning_rate, iterations, seed_box],
        [plot, other, text, found],
        api_name="toy",
        show_progress="hidden",
        **ONE_AT_A_TIME,
    )
    stop.click(stopped, text, text, cancels=event, queue=False, api_visibility="private")
    second.change(
        lambda name: gr.update(visible=name != NONE), second, other, api_visibility="private"
    )
    problem.change(
        _of_problem, problem, [path, plot, other, text, found], api_visibility="private"
    )


def _paths(problem: str) -> list[tuple[str, str]]:
    return [(PATHS[name], name) for name in paths_of(problem)]


def _of_problem(problem: str) -> tuple[dict, Figure, None, str, None]:
    """Its paths and its draws; no figure stands beside another problem than its own."""
    paths = gr.update(choices=_paths(problem), value=paths_of(problem)[0])
    return paths, preview(problem), None, "", None
