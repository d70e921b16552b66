"""What the tabs share that train before the visitor's eyes: checked numbers and a pace."""

import math

import gradio as gr
from gradio.components import Component

from ebm_app.errors import UserError

from .shared import MAX_SEED

#: a run shows itself about so often, and after ``MAX_EVERY`` steps at the latest: then it can stop
TIMES, MAX_EVERY = 20, 100
MAX_ITERATIONS, RATES = 5_000, (1e-5, 0.1)
#: a plot before there is anything to draw, in place of an empty box, and afterwards
HIDDEN, SHOWN = gr.update(value=None, visible=False), gr.update(visible=True)


def training_numbers(rate: float, iterations: int, seed: int) -> list[Component]:
    """Learning rate, iterations and seed of a run, with what to begin with."""
    return [
        gr.Number(rate, label="Learning rate", minimum=RATES[0], maximum=RATES[1], step=1e-4),
        gr.Slider(1, MAX_ITERATIONS, value=iterations, step=1, label="Iterations"),
        gr.Number(seed, label="Seed", precision=0, minimum=0, maximum=MAX_SEED),
    ]


def train_and_stop() -> tuple[gr.Button, gr.Button]:
    """What starts a run and what stops it."""
    with gr.Row():
        return gr.Button("Train", variant="primary"), gr.Button("Stop")


def whole(name: str, value: float, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``.

    Raises:
        UserError: for any other.
    """
    if not (_is_number(value) and low <= value <= high and value == int(value)):
        raise UserError(f"{name} cannot be {value}: give a whole number from {low} to {high}")
    return int(value)


def real(name: str, value: float, low: float, high: float) -> float:
    """A number from ``low`` to ``high``.

    Raises:
        UserError: for any other.
    """
    if not (_is_number(value) and low <= value <= high):
        raise UserError(f"{name} cannot be {value}: give a number from {low:g} to {high:g}")
    return float(value)


def _is_number(value: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def eval_every(iterations: int, most: int = MAX_EVERY) -> int:
    """Steps between two looks at a run of so many; ``most`` where steps take long."""
    return min(most, math.ceil(iterations / TIMES))
