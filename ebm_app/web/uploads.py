"""Inputs of images: a canvas to draw on, and a gallery of examples."""

import gradio as gr
import numpy as np
from PIL import Image

from ebm_app.evaluation.held_out import examples

from .models import Models
from .shared import AT_ONCE, gallery, selected_file

#: Side of the canvas, and diameter of its brush, in pixels. The strokes are about as wide as those
#: of the digits in the data.
SIDE, BRUSH = 280, 17
EMPTY = "The canvas is empty. Draw a digit."


def read_canvas(canvas: dict[str, Image.Image | None] | None) -> Image.Image | None:
    """Return the grey drawing on a canvas (light strokes on black), or None if it is empty."""
    drawing = (canvas or {}).get("composite")
    return drawing.convert("L") if drawing is not None and drawing.getbbox() else None


def black_canvas(label: str) -> gr.ImageEditor:
    """Return a black canvas with a white brush."""
    black = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    blank = {"background": black, "layers": [], "composite": black}
    canvas = gr.ImageEditor(
        value=blank,
        label=label,
        image_mode="L",
        type="pil",
        sources=(),
        transforms=(),
        layers=False,
        canvas_size=(SIDE, SIDE),
        fixed_canvas=True,
        brush=gr.Brush(default_size=BRUSH, colors=["#ffffff"], color_mode="fixed"),
        format="png",
    )
    # gradio's clear button also removes the background and the brush; setting the value restores
    # them
    canvas.clear(lambda: blank, None, canvas, **AT_ONCE)
    return canvas


def add_examples(upload: gr.Image, model: gr.Dropdown, models: Models) -> None:
    """Add a gallery of held-out images of the model's data; clicking on an image uploads it."""
    label = "Examples: held-out images of the model's data"
    shown = gallery(label=label, buttons=[])

    def fill(name: str) -> list[Image.Image]:
        return examples(models.folder(name), models.config(name), models.data_root)

    gr.on(None, fill, model, shown, **AT_ONCE)
    shown.select(selected_file, shown, upload, **AT_ONCE)
