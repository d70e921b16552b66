"""From a visitor's image file or drawing to an image on the grid of a model's levels."""

from pathlib import Path
from typing import NamedTuple

import gradio as gr
import numpy as np
from PIL import Image, ImageChops, ImageStat
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.pictures import prepare_image, read_image, to_pil, to_uint8
from ebm_app.utils.errors import UserError

from ..models import without_path
from ..runs import AT_ONCE
from .digits import FRAMES, SIDE, framed, ink_of

BRUSH = 17  # half the width of a stroke, which leaves about as much ink as the digits have
WHITE = "#ffffff"
NO_COLOUR = "the model's images are in colour: upload an image instead of drawing one"
CHANGED = (
    "Pixels were changed on the way to the model, which costs bits: an image of {width}x{height} "
    "pixels and the model's {levels} levels needs no change."
)
FOUND = "The digit was taken out of its ground and framed as the model's data are."


class Prepared(NamedTuple):
    """An image (1, C, H, W) on a model's levels in [0, 1], and what to know of how it was made
    from what a visitor gave, each a sentence."""

    image: Tensor
    notes: tuple[str, ...] = ()


def read_upload(path: str | Path | None, config: EBMConfig, as_it_is: bool = False) -> Prepared:
    """An image file on the model's grid of levels in [0, 1].

    Its colours are kept or made grey, the centre of the model's aspect ratio is cut out, areas are
    averaged to the model's pixels, and each value goes to the nearest level. A picture whose
    pixels are repeated in blocks gives them back unchanged. Where the data are digits, the ink of
    a picture that is not so, or that has a light ground, is found and framed first, unless it is
    taken ``as_it_is``.
    """
    if not path:
        raise UserError("there is no image: upload one, or click on an example if there are any")
    _, height, width = config.image_shape
    whole = _read(path)
    image = prepare_image(whole, config)
    seen = to_pil(to_uint8(image)[0]).convert("RGB")
    enlarged = seen.resize(whole.size, Image.Resampling.NEAREST)
    is_small = whole.width < width or whole.height < height
    is_changed = is_small or np.asarray(ImageChops.difference(enlarged, whole)).any()
    grey = whole.convert("L")
    is_light = ImageStat.Stat(grey).median[0] >= 128
    if config.dataset in FRAMES and not as_it_is and (is_changed or is_light):
        if (ink := ink_of(grey)) is not None:
            return Prepared(prepare_image(framed(ink, config), config), (FOUND,))
    changed = CHANGED.format(width=width, height=height, levels=config.num_levels)
    return Prepared(image, (changed,) if is_changed else ())


def read_drawing(path: str | Path | None, config: EBMConfig) -> Prepared:
    """A drawing, light strokes on a dark ground, on the model's grid of levels in [0, 1].

    Where the data are digits, the inked box is scaled as theirs are and its centre of mass goes to
    the middle, short of the edges. Areas are averaged to the model's pixels.
    """
    if config.image_shape[0] != 1:
        raise UserError(NO_COLOUR)
    picture = _read(path).convert("L") if path else None
    if picture is None or picture.getbbox() is None:
        raise UserError("the canvas is empty: draw a digit on it")
    if config.dataset in FRAMES:
        picture = framed(picture, config)
    return Prepared(prepare_image(picture, config))


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


def _read(path: str | Path) -> Image.Image:
    """An image file in RGB, one with transparent parts on white, or on black where its ink is
    light; the folder is the server's own."""
    path = Path(path)
    with without_path(path, path.name):
        picture = read_image(path, keep_alpha=True)
    if picture.mode != "RGBA":
        return picture.convert("RGB")
    shade, alpha = (np.asarray(part, float) for part in picture.convert("LA").split())
    is_light = (shade * alpha).sum() > 127.5 * alpha.sum()
    ground = Image.new("RGBA", picture.size, "black" if is_light else "white")
    return Image.alpha_composite(ground, picture).convert("RGB")


def preparation() -> gr.Checkbox:
    """Whether files are scored as they are: ``as_it_is`` of ``read_upload``."""
    return gr.Checkbox(
        label="Take it as it is",
        info="otherwise a digit on paper is found, turned light on dark, and framed",
    )
