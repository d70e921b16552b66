"""The canvas for a digit, and how a drawing becomes an image like those of the model's data."""

from collections.abc import Callable
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.models.config import EBMConfig

from ..buttons import AT_ONCE
from ..explanations import explain_unreadable
from .uploads import on_levels

SIDE = 280
BRUSH = 17  # half the width of a stroke, which leaves about as much ink as the digits have
NO_COLOUR = "the model's images are in colour: upload an image instead of drawing one"

Size = tuple[float, float]


def fill_height(width: float, height: float) -> Size:
    """Size of an inked box as the 8 x 8 digits have it: all of the height, at most three quarters
    of the width, for which wide ones are squeezed."""
    return min(width / height, 0.75), 1.0


def fit_square(width: float, height: float) -> Size:
    """Size of an inked box as in MNIST: its longer side takes 20 of 28 pixels."""
    share = 20 / 28 / max(width, height)
    return width * share, height * share


#: by data set, the shares of the frame's sides that the ink takes; other drawings stay in place
FRAMES: dict[str, Callable[[float, float], Size]] = {"digits": fill_height, "mnist": fit_square}


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
        picture = _framed(picture, FRAMES[config.dataset])
    return on_levels(picture.resize((width, height), Image.Resampling.BOX), config)


def _framed(picture: Image.Image, frame: Callable[[float, float], Size]) -> Image.Image:
    left, top, right, bottom = picture.getbbox()
    shares = frame(right - left, bottom - top)
    size = tuple(max(1, round(share * SIDE)) for share in shares)
    box = picture.crop((left, top, right, bottom)).resize(size, Image.Resampling.BILINEAR)
    ink = np.asarray(box, dtype=float)
    corner = [_centred(ink.sum(axis)) for axis in (0, 1)]
    framed = Image.new("L", (SIDE, SIDE))
    framed.paste(box, tuple(corner))
    return framed


def _centred(ink: np.ndarray) -> int:
    """Where a profile of ink begins if its centre of mass is in the middle, short of the edges."""
    centre = np.average(np.arange(len(ink)) + 0.5, weights=ink)
    return round(float(np.clip(SIDE / 2 - centre, 0, SIDE - len(ink))))


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
