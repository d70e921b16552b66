"""From a visitor's image file or drawing to an image on the grid of a model's levels."""

from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import numpy as np
from PIL import Image, ImageChops, ImageOps
from torch import Tensor

from ebm_app.data.folder import on_levels, read_image
from ebm_app.data.png import to_picture, to_uint8
from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

from ..models import without_path
from ..runs import AT_ONCE
from .digits import FRAMES, SIDE, framed, ground, ink_box

BRUSH = 17  # half the width of a stroke, which leaves about as much ink as the digits have
WHITE = "#ffffff"
NO_COLOUR = "the model's images are in colour: upload an image instead of drawing one"
CHANGED = (
    "Pixels were changed on the way to the model, which costs bits: an image of {width}x{height} "
    "pixels and the model's {levels} levels needs no change."
)
LIGHT_GROUND = (
    "The ground is light, but the model's data are light digits on a dark ground: {} Invert."
)


class Prepared(NamedTuple):
    """An image (1, C, H, W) on a model's levels in [0, 1], and what to know of how it was made
    from what a visitor gave, each a sentence."""

    image: Tensor
    notes: tuple[str, ...] = ()


def read_upload(
    path: str | Path | None, config: EBMConfig, invert: bool = False, frame: bool = False
) -> Prepared:
    """An image file on the model's grid of levels in [0, 1].

    Its colours are kept or made grey, the centre of the model's aspect ratio is cut out, areas are
    averaged to the model's pixels, and each value goes to the nearest level. A picture whose
    pixels are repeated in blocks gives them back unchanged.

    Args:
        invert: light and dark change places first. frame: in place of the centre, the box of a
            digit is cut out and laid into the frame as those of the model's data are.

    Raises:
        UserError: for no file or one that cannot be used, a model of neither grey nor RGB images,
            and a frame for a model of other data than digits or an image without ink.
    """
    if not path:
        raise UserError("there is no image: upload one, or click on an example if there are any")
    channels, height, width = config.image_shape
    if channels not in (1, 3):
        raise UserError(f"the model's images have {channels} channels: choose one of grey or RGB")
    whole = _read(path).convert("RGB")
    if invert:
        whole = ImageOps.invert(whole)
    picture = whole.convert("L") if channels == 1 else whole
    part = framed(picture, ink_box(picture, config), config) if frame else picture
    image = on_levels(ImageOps.fit(part, (width, height), Image.Resampling.BOX), config)
    seen = to_picture(to_uint8(image)[0]).convert("RGB")
    enlarged = seen.resize(whole.size, Image.Resampling.NEAREST)
    is_small = whole.width < width or whole.height < height
    notes = []
    if is_small or np.asarray(ImageChops.difference(enlarged, whole)).any():
        notes.append(CHANGED.format(width=width, height=height, levels=config.num_levels))
    if config.dataset in FRAMES and ground(picture) >= 128:
        notes.append(LIGHT_GROUND.format("untick" if invert else "tick"))
    return Prepared(image, tuple(notes))


def read_drawing(path: str | Path | None, config: EBMConfig) -> Prepared:
    """A drawing, light strokes on a dark ground, on the model's grid of levels in [0, 1].

    Where the data are digits, the inked box is scaled as theirs are and its centre of mass goes to
    the middle, short of the edges. Areas are averaged to the model's pixels.

    Raises:
        UserError: for an empty canvas, a file that is no image, and a model of colour images.
    """
    channels, height, width = config.image_shape
    if channels != 1:
        raise UserError(NO_COLOUR)
    picture = _read(path).convert("L") if path else None
    if picture is None or picture.getbbox() is None:
        raise UserError("the canvas is empty: draw a digit on it")
    if config.dataset in FRAMES:
        picture = framed(picture, picture.getbbox(), config)
    return Prepared(on_levels(picture.resize((width, height), Image.Resampling.BOX), config))


def black_canvas(label: str, image_mode: str, colours: list[str]) -> gr.ImageEditor:
    """A black canvas, ready for a stroke, with a brush of these colours."""
    black = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    blank = {"background": black, "layers": [], "composite": black}
    canvas = gr.ImageEditor(
        value=blank,
        label=label,
        image_mode=image_mode,
        type="numpy",
        sources=(),
        transforms=(),
        layers=False,
        canvas_size=(SIDE, SIDE),
        fixed_canvas=True,
        brush=gr.Brush(default_size=BRUSH, colors=colours, color_mode="fixed"),
        format="png",
    )
    # clearing also takes the background and the brush away, until a value is set again
    canvas.clear(lambda: blank, None, canvas, **AT_ONCE)
    return canvas


def drawn_path(drawing: Any) -> Any:
    """The file of a canvas: all its strokes on its ground."""
    composite = drawing.get("composite") if isinstance(drawing, dict) else None
    return composite and composite["path"]


def _read(path: str | Path) -> Image.Image:
    """``read_image``; its folder is the server's own."""
    path = Path(path)
    with without_path(path, path.name):
        return read_image(path)


def preparation() -> tuple[gr.Checkbox, gr.Checkbox]:
    """The choices of what may be done to files before they are scored: ``invert`` and ``frame``
    of ``read_upload``."""
    invert = gr.Checkbox(
        label="Invert",
        info="for dark digits on a light ground, where the model's data are light on dark",
    )
    frame = gr.Checkbox(
        label="Frame the digit as the data are framed",
        info="cut out what is lighter than the ground, then scale and centre it; digits only",
    )
    return invert, frame
