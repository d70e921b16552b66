"""What the tabs share that train while the visitor watches: checked settings, the components that
set them, and those that show the run."""

import math
from collections.abc import Callable
from typing import NamedTuple

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from .buttons import AT_ONCE, RUNNING
from .ranges import real, whole
from .shared import MAX_SEED, slider

#: a run is shown about ``TIMES`` times, and at least every ``MAX_EVERY`` steps: then it can stop
TIMES, MAX_EVERY = 20, 100
MAX_ITERATIONS, RATES = 5_000, (1e-5, 0.1)


class TrainingNumbers(NamedTuple):
    """What a visitor sets of a training."""

    learning_rate: float
    iterations: int
    seed: int


def checked(learning_rate: float, iterations: float, seed: float) -> TrainingNumbers:
    """The numbers of a training.

    Raises:
        UserError: for one that is out of range.
    """
    return TrainingNumbers(
        real("the learning rate", learning_rate, *RATES),
        whole("iterations", iterations, 1, MAX_ITERATIONS),
        whole("the seed", seed, 0, MAX_SEED),
    )


def eval_every(iterations: int, most: int = MAX_EVERY) -> int:
    """Steps between two evaluations of a run of so many; at most ``most``, fewer where steps take
    long."""
    return min(most, math.ceil(iterations / TIMES))


def progress(step: int, total: int, is_done: bool) -> str:
    """The steps of a run, as its text begins."""
    return f"{total} steps" if is_done else f"{RUNNING} {step} of {total}"


def seed_box(seed: int) -> gr.Number:
    """The choice of a seed, with the one to begin with."""
    return gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED)


def training_boxes(rate: float, iterations: int, seed: int) -> list[Component]:
    """The choices of learning rate, iterations and seed, with what to begin with."""
    return [
        gr.Number(rate, label="Learning rate", minimum=RATES[0], maximum=RATES[1], step=1e-4),
        slider(1, MAX_ITERATIONS, iterations, "Iterations"),
        seed_box(seed),
    ]


def run_box(label: str = "Run", lines: int = 4) -> gr.Textbox:
    """The text of a run."""
    return gr.Textbox(label=label, interactive=False, lines=lines, placeholder="Not run yet")


def metrics_box() -> gr.JSON:
    """The metrics of a run, folded away."""
    with gr.Accordion("Metrics", open=False):
        return gr.JSON(label="Metrics", show_label=False)


def show_first(start: gr.Button, plot: gr.Plot) -> Callable[..., Dependency]:
    """A trigger that shows a hidden plot, and then starts the run that draws it."""
    return start.click(lambda: gr.update(visible=True), outputs=plot, **AT_ONCE).then
