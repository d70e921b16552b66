"""Complete tab: draw a part of an image and let the model sample the rest."""

from collections.abc import Iterator
from typing import Annotated

import gradio as gr
import torch
from annotated_types import Ge, Le
from PIL import Image

from ebm_app.completion import iterate_completion
from ebm_app.data.levels import to_levels
from ebm_app.data.pictures import prepare_image
from ebm_app.utils.registry import choose

from .models import Models
from .runs import Upload, clear_on, start_and_stop, start_by
from .shared import Seed, picture, progress, render, seed_box, slider, text_box
from .uploads import black_canvas, read_canvas

MAX_IMAGES, MAX_TEMPERATURES = 16, 300
#: Unknown halves: the image axis that is halved, and the index of the unknown half
HALVES = {"lower half": (0, 1), "upper half": (0, 0), "left half": (1, 0), "right half": (1, 1)}
HINT = (
    "Draw half of a digit, choose which half is **unknown**, and press **Complete**. The model "
    "samples the unknown half given the other one."
)


def complete(
    model: str,
    drawing: Upload | None,
    unknown: str,
    num_images: Annotated[int, Ge(1), Le(MAX_IMAGES)],
    num_temperatures: Annotated[int, Ge(2), Le(MAX_TEMPERATURES)],
    seed: Seed,
    *,
    models: Models,
) -> Iterator[tuple[Image.Image | None, str]]:
    """Sample the unknown half of a drawing given the other half.

    Returns the completions in one grid and a caption.
    """
    ebm = models.load(model)
    axis, half = HALVES[choose("unknown", unknown, HALVES)]
    image = prepare_image(read_canvas(drawing, ebm.config), ebm.config)
    known = torch.ones(image.shape[2:], dtype=torch.bool)
    known.chunk(2, axis)[half].fill_(False)
    levels = to_levels(image, ebm.config.num_levels).expand(num_images, -1, -1, -1)
    yield None, f"Starting · {model} · seed {seed}"
    for frame in iterate_completion(ebm, levels, known, seed, num_temperatures=num_temperatures):
        text = f"{progress(frame.step, frame.num_steps)} · {model} · seed {seed}"
        yield render(ebm.to_images(frame.x)), text


def build(models: Models, model: gr.Dropdown, seed: int) -> None:
    """Add the tab and its endpoint /complete to the page."""
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column():
            canvas = black_canvas("Half of a digit")
            choices = list(HALVES)
            unknown = gr.Radio(choices, value=choices[0], label="Unknown half")
            buttons = start_and_stop("Complete")
            with gr.Accordion("Advanced", open=False):
                count = slider(1, MAX_IMAGES, 4, "Images")
                steps = slider(2, MAX_TEMPERATURES, 60, "Temperatures")
                seeds = seed_box(seed)
        with gr.Column():
            alt_text, height = "Completions of the drawing", "min(420px, 104vw)"
            grid = picture("Completions", alt_text, height, show_label=False)
            text = text_box("Run")
    inputs = [model, canvas, unknown, count, steps, seeds]
    event = start_by(buttons, complete, inputs, [grid, text], {"models": models})
    clear_on([model.change], [event], [grid, text])
