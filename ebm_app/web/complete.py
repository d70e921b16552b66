"""The tab that completes images: draw a part, mark what the model is to make."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import gradio as gr
import numpy as np
import torch
from annotated_types import Ge, Le
from PIL import Image
from torch import Tensor

from ebm_app.completion import iterate_completion
from ebm_app.config import EBMConfig
from ebm_app.data.levels import to_levels
from ebm_app.data.pictures import prepare_image, read_image
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

from .models import Models
from .runs import Upload, empty_by, start_and_stop, start_by
from .score.uploads import NO_COLOUR, WHITE, black_canvas
from .shared import Seed, picture, progress, render, seed_box, slider, text_box

MAX_IMAGES, MAX_TEMPERATURES = 16, 300
#: what may be unknown: a half, by the dimension that it divides and its place there, or red pixels
HALVES = {"lower half": (0, 1), "upper half": (0, 0), "left half": (1, 0), "right half": (1, 1)}
MARKED = "what is red"
RED = "#e02020"
HINT = (
    "Draw a part of a digit, say which part is **unknown**, and press **Complete**: the model "
    "draws that part, several times, given the rest. What is black and known stays empty."
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
    """Draws of a part of a picture given the rest: a half of it, or what is red; returns them in
    one picture, and a caption."""
    ebm = models.load(model)
    choose("unknown", unknown, [*HALVES, MARKED])
    image, red = read_marked(drawing, ebm.config)
    mask = ~red
    if unknown != MARKED:
        dim, side = HALVES[unknown]
        mask.fill_(True).chunk(2, dim)[side].fill_(False)
    if mask.all():
        raise UserError("nothing is marked as unknown: cover a part with the red brush")
    levels = to_levels(image, ebm.config.num_levels)
    many = levels.expand(num_images, -1, -1, -1)
    yield None, f"Starting · {model} · seed {seed}"
    for frame in iterate_completion(ebm, many, mask, seed, num_temperatures=num_temperatures):
        text = f"{progress(frame.step, frame.num_steps)} · {model} · seed {seed}"
        yield render(ebm.to_images(frame.x)), text


def read_marked(path: str | None, config: EBMConfig) -> tuple[Tensor, Tensor]:
    """The image (1, 1, H, W) in [0, 1] of a drawing, and the pixels (H, W) of which at least a
    quarter is red."""
    channels, height, width = config.image_shape
    if channels != 1:
        raise UserError(NO_COLOUR)
    if not path:
        raise UserError("the canvas is empty: draw a part of a digit on it")
    whole = np.asarray(read_image(Path(path)).convert("RGB")).astype(np.int16)
    red = Image.fromarray(((whole[..., 0] - whole[..., 1]) > 100).astype(np.uint8) * 255)
    share = np.asarray(red.resize((width, height), Image.Resampling.BOX))
    marked = torch.from_numpy(share.copy()) >= 64
    grey = Image.fromarray(whole[..., 1].astype(np.uint8))
    return prepare_image(grey.resize((width, height), Image.Resampling.BOX), config), marked


def build(models: Models, model: gr.Dropdown, seed: int) -> None:
    """Put the tab on the page, with its endpoint /complete."""
    gr.Markdown(HINT)
    with gr.Row():
        with gr.Column():
            canvas = black_canvas("A part of a digit", "RGB", [WHITE, RED])
            choices = [*HALVES, MARKED]
            info = "the second colour of the brush is red"
            unknown = gr.Radio(choices, value=choices[0], label="Unknown", info=info)
            buttons = start_and_stop("Complete")
            with gr.Accordion("Advanced", open=False):
                count = slider(1, MAX_IMAGES, 4, "Images")
                steps = slider(2, MAX_TEMPERATURES, 60, "Temperatures")
                seeds = seed_box(seed)
        with gr.Column():
            drawn, height = "Completions of the drawing", "min(420px, 104vw)"
            grid = picture("Completions", drawn, height, show_label=False)
            text = text_box("Run")
    inputs = [model, canvas, unknown, count, steps, seeds]
    event = start_by(buttons, complete, inputs, [grid, text], {"models": models})
    empty_by([model.change], [event], [grid, text])
