"""The canvas for a digit, and how a drawing becomes an image like those of the model's data."""

from typing import Any

import gradio as gr
import numpy as np
from PIL import Image
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

from ..buttons import AT_ONCE
from ..explanations import explain_unreadable
from .framing import FRAMES, SIDE, framed
from .prepared import Prepared
from .uploads import on_levels

BRUSH = 17  # half the width of a stroke, which leaves about as much ink as the digits have
NO_COLOUR = "the model's images are in colour: upload an image instead of drawing one"


def prepared(drawing: dict[str, Any] | None, config: EBMConfig) -> Prepared:
    """``prepare``, and what it did."""
    _, height, width = config.image_shape
    steps = ["scaled and centred as the data are"] if config.dataset in FRAMES else []
    return Prepared(prepare(drawing, config), (*steps, f"averaged to {width}x{height} pixels"))


def prepare(drawing: dict[str, Any] | None, config: EBMConfig) -> Tensor:
    """A drawing as an image (1, 1, H, W) on the model's grid of levels in [0, 1].

    Where the data are digits, the inked box is scaled as theirs are and its centre of mass goes to
    the middle, short of the edges. Areas are averaged to the model's pixels.

    Args:
        drawing: the canvas; its "composite" is (h, w) uint8, strokes are 255 and the rest is 0.

    Raises:
        UserError: for an empty canvas, and a model of colour images.
    """
    channels, height, width = config.image_shape
    if channels != 1:
        raise UserError(NO_COLOUR)
    ink = None if drawing is None else drawing["composite"]
    if ink is None or not ink.any():
        raise UserError("the canvas is empty: draw a digit on it")
    picture = Image.fromarray(ink)
    if config.dataset in FRAMES:
        picture = framed(picture, picture.getbbox(), config)
    return on_levels(picture.resize((width, height), Image.Resampling.BOX), config)


def blank() -> dict[str, Any]:
    """The value of an empty canvas."""
    black = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    return {"background": black, "layers": [], "composite": black}


def canvas() -> gr.ImageEditor:
    """A black canvas with a white brush, ready for a stroke."""
    editor = gr.ImageEditor(
        value=blank(),
        label="Drawing",
        image_mode="L",
        type="numpy",
        sources=(),
        transforms=(),
        layers=False,
        canvas_size=(SIDE, SIDE),
        fixed_canvas=True,
        brush=gr.Brush(default_size=BRUSH, colors=["#ffffff"], color_mode="fixed"),
        format="png",
    )
    explain_unreadable(editor)
    # clearing also takes the background and the brush away, until a value is set again
    editor.clear(blank, None, editor, **AT_ONCE)
    return editor
