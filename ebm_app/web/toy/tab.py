"""The tab that learns the log ratio of a toy problem while the visitor watches."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.ratios.training import RatioTraining
from ebm_app.ratios.trial_plots import plot_pair, plot_trial
from ebm_app.ratios.trials import METHODS, PAIRS, Trial, paths_of, watch

from ..buttons import AT_ONCE, STARTING, start_and_stop, start_by, stop_by, stopped
from ..explanations import explained
from ..training import checked, eval_every, metrics_box, run_box, training_boxes
from .report import PATHS, method_label, metrics, problem_label, report, title

NONE = "none"
ShownTrials = tuple[Figure, Figure | None, str, dict[str, Any]]


def train(
    problem: str,
    path: str,
    methods: Sequence[str],
    learning_rate: float,
    iterations: int,
    seed: int,
    device: str = "cpu",
) -> Iterator[ShownTrials]:
    """Train one or two methods on a problem: (plot, plot, text, metrics) at every evaluation.

    Whoever stops iterating stops the training, and keeps what was shown last.

    Args:
        methods: of ``METHODS``; they see the same draws.

    Raises:
        UserError: for an unknown name or an invalid number, and one method twice.
    """
    numbers = checked(learning_rate, iterations, seed)
    training = RatioTraining(numbers.iterations, eval_every=eval_every(numbers.iterations))
    if len(set(methods)) < len(methods):
        raise UserError("both methods are the same: choose another to compare with, or none")
    trials = [
        Trial(problem, path, method, numbers.learning_rate, training, numbers.seed)
        for method in methods
    ]
    yield preview(problem), None, f"{STARTING} · {problem_label(problem)} · {PATHS[path]}", {}
    begin = time.perf_counter()
    for shots in zip(*(watch(trial, device) for trial in trials), strict=True):
        plots = [plot_trial(shot, title(shot.trial)) for shot in shots]
        first, second = [*plots, None][:2]
        yield first, second, report(shots, time.perf_counter() - begin), metrics(shots)


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
    first = next(iter(PAIRS))
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            chosen = _choices(first)
            numbers = training_boxes(2e-3, 1_000, seed)
            start, stop = start_and_stop("Train")
        with gr.Column(scale=2, min_width=320):
            text = run_box(lines=3)
            with gr.Row():
                plot = gr.Plot(preview(first), label="Method", format="png")
                other = gr.Plot(label="Compared with", format="png", visible=False)
            shown = [plot, other, text, metrics_box()]

    @explained
    def run(
        problem: str,
        path: str,
        method: str,
        second: str,
        learning_rate: float,
        iterations: int,
        seed: int,
    ) -> Iterator[ShownTrials]:
        """Train one or two methods on a toy problem; returns a plot for either, a text, and the
        metrics."""
        compared = [method] if second == NONE else [method, second]
        yield from train(problem, path, compared, learning_rate, iterations, seed, device)

    problem, path, method, second = chosen
    event = start_by(start.click, run, [*chosen, *numbers], shown, api_name="toy")
    stop_by(stop, [event], stopped, [text])
    second.change(
        lambda name: gr.update(visible=name != NONE), second, other, api_visibility="private"
    )
    # not by a change of the path, which another problem brings about too
    triggers = [problem.change, path.input, method.input, second.input]
    gr.on(triggers, None, cancels=[event], **AT_ONCE)
    gr.on(triggers[1:], emptied, problem, shown, show_progress="hidden", **AT_ONCE)
    problem.change(of_problem, problem, [path, *shown], show_progress="hidden", **AT_ONCE)


def _choices(problem: str) -> list[gr.Dropdown]:
    """The choices of a problem, its path, a method and another to compare with."""
    methods = [(method_label(name), name) for name in METHODS]
    return [
        gr.Dropdown(
            [(problem_label(name), name) for name in PAIRS], value=problem, label="Problem"
        ),
        gr.Dropdown(_paths(problem), value=paths_of(problem)[0], label="Path from p₀ to p₁"),
        gr.Dropdown(methods, value="ctsm_v_time1", label="Method", info="objective and weighting"),
        gr.Dropdown(
            [("none", NONE), *methods],
            value=NONE,
            label="Compare with",
            info="a second method, on the same draws",
        ),
    ]


def _paths(problem: str) -> list[tuple[str, str]]:
    return [(PATHS[name], name) for name in paths_of(problem)]


def of_problem(problem: str) -> tuple[dict, Figure, None, str, None]:
    """Its paths and its draws; no result stands beside another problem than its own."""
    paths = gr.update(choices=_paths(problem), value=paths_of(problem)[0])
    return paths, *emptied(problem)


def emptied(problem: str) -> tuple[Figure, None, str, None]:
    """The draws of a problem in place of what was learned by another choice."""
    return preview(problem), None, "", None
