"""Complete tab: draw a part of an image and let the model sample the rest."""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr
import torch
from PIL import Image

from ebm_app.completion import iterate_completion
from ebm_app.data.levels import to_levels
from ebm_app.evaluation.drawings import prepare_drawing
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

from . import shared
from .models import Models
from .uploads import EMPTY, black_canvas, read_canvas

MAX_IMAGES, MAX_TEMPERATURES = 16, 300
#: Unknown halves: the image axis that is halved, and the index of the unknown half
HALVES = {"lower half": (0, 1), "upper half": (0, 0), "left half": (1, 0), "right half": (1, 1)}
HINT = (
    "Draw half of a digit, choose which half is **unknown**, and press **Complete**. The model "
    "samples the unknown half given the other one."
)


def complete(
    model: str,
    drawing: dict[str, Any] | None,
    unknown: str,
    num_images: int,
    num_temperatures: int,
    seed: int,
    *,
    models: Models,
) -> Iterator[tuple[Image.Image, str]]:
    """Sample the unknown half of a drawing given the other half.

    Returns the completions in one grid, and a caption. The known half is the drawing averaged to
    the model's pixels.
    """
    axis, half = HALVES[choose("unknown", unknown, HALVES)]
    if (ink := read_canvas(drawing)) is None:
        raise UserError(EMPTY)
    ebm = models.load(model)
    image = prepare_drawing(ink, ebm.config, framed=False)
    height, width = image.shape[2:]
    known = torch.ones((height, width), dtype=torch.bool)
    known.chunk(2, axis)[half].fill_(False)
    levels = to_levels(image, ebm.config.num_levels).expand(num_images, -1, -1, -1)
    begin = time.perf_counter()
    frames = iterate_completion(ebm, levels, known, seed, num_temperatures=num_temperatures)
    for frame in shared.at_intervals(frames):
        text = shared.progress(frame, f"{num_images} completions", begin)
        known_half = f"the known half is your drawing averaged to {width} × {height} pixels"
        text = f"{text} · {model} · seed {seed} · {known_half}"
        yield shared.render(ebm.to_images(frame.x)), text


def build(models: Models, model: gr.Dropdown, seed: int) -> None:
    """Add the tab and its endpoint /complete to the page."""
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column():
            canvas = black_canvas("Half of a digit")
            unknown = gr.Radio([*HALVES], value="lower half", label="Unknown half")
            buttons = shared.start_and_stop("Complete")
            with gr.Accordion("Advanced", open=False):
                count = shared.slider(1, MAX_IMAGES, 4, label="Images")
                steps = shared.slider(2, MAX_TEMPERATURES, 48, label="Temperatures")
                seeds = shared.seed_box(seed)
        with gr.Column():
            alt_text, height = "Completions of the drawing", "min(420px, 104vw)"
            grid = shared.picture("Completions", alt_text, height, show_label=False)
            text = shared.text_box(label="Run")
    inputs = [model, canvas, unknown, count, steps, seeds]
    event = shared.start_by(buttons, complete, inputs, [grid, text], "sample", models=models)
    shared.clear_on([model.input], [event], [grid, text])
