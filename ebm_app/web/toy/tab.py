"""The tab that learns the log ratio of a toy problem before the visitor's eyes."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.errors import UserError
from ebm_app.ratios.studies.trial_plots import plot_pair, plot_trial
from ebm_app.ratios.studies.trials import METHODS, PAIRS, Trial, paths_of, watch
from ebm_app.ratios.training import RatioTraining
from ebm_app.registry import choose

from ..ending import stop_by
from ..live import (
    MAX_ITERATIONS,
    RATES,
    eval_every,
    real,
    train_and_stop,
    training_numbers,
    whole,
)
from ..shared import MAX_SEED, ONE_AT_A_TIME, explained, stopped
from .report import PATHS, figures, method_label, problem_label, report

NONE = "none"
Output = tuple[Figure, Figure | None, str, dict[str, Any]]


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
            numbers = training_numbers(2e-3, 1_000, seed)
            start, stop = train_and_stop()
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
        [problem, path, method, second, *numbers],
        [plot, other, text, found],
        api_name="toy",
        show_progress="hidden",
        **ONE_AT_A_TIME,
    )
    stop_by(stop, [event], stopped, [text])
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
