"""Conversion of uploaded and drawn images to a model's image size and grey levels.

For data sets of digits, the digit of a photograph or a drawing is segmented and then scaled and
centred like the digits of the data set.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gradio as gr
import numpy as np
from PIL import Image, ImageChops, ImageStat
from scipy import ndimage
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.pictures import prepare_image, read_image, to_pil, to_uint8
from ebm_app.utils.errors import UserError

from .models import hide_path
from .runs import AT_ONCE

#: Side of the canvas, and diameter of its brush, in pixels. The strokes are about as wide as those
#: of the digits in the data.
SIDE, BRUSH = 280, 17
#: Longer side, in pixels, to which a photograph is reduced before segmentation
PHOTO_SIDE = 168
#: A pixel is ink if it differs from the background by at least this much, of 255, and by at least
#: this share of the largest difference
MIN_CONTRAST, MIN_SHARE = 26, 0.4
#: Connected components smaller than this share of the largest one are dropped
MIN_COMPONENT = 0.05
#: Slope of the soft threshold that maps contrast to grey levels
SLOPE = 5.0
NO_COLOUR = "This model takes colour images, and the canvas is grey. Upload an image instead."
CHANGED = (
    "The image was resized or rounded, which changes its likelihood. An image of "
    "{width}x{height} pixels with the model's {levels} levels needs no change."
)
SEGMENTED = "The digit was cut out and scaled and centred like the model's data."


class Prepared(NamedTuple):
    """An image (1, C, H, W) in [0, 1] on a model's grey levels, and sentences that describe how it
    was changed."""

    image: Tensor
    notes: tuple[str, ...] = ()


class DigitFrame(NamedTuple):
    """Position of the digits of a data set in their images.

    ``size`` maps the width and height of a digit's bounding box to the shares of the image that it
    takes. ``centre`` is the position of the centre of mass, as a share of the image side. ``grid``
    is the pixel size that bounding boxes are aligned to, as such a share; 0 for no alignment.
    """

    size: Callable[[float, float], tuple[float, float]]
    centre: float = 0.5
    grid: float = 0.0


#: Frames by data set. An 8 x 8 digit takes the full height and at most three quarters of the
#: width. The longer side of an MNIST digit takes 20 of 28 pixels, its centre of mass is at the
#: centre of a pixel, and it is moved by whole pixels.
FRAMES = {
    "digits": DigitFrame(lambda width, height: (min(width / height, 0.75), 1.0)),
    "mnist": DigitFrame(
        lambda width, height: tuple(
            20 / 28 * side / max(width, height) for side in (width, height)
        ),
        centre=14.5 / 28,
        grid=1 / 28,
    ),
}


def read_upload(path: str | Path | None, config: EBMConfig, unchanged: bool = False) -> Prepared:
    """Return an image file as an input of a model.

    The largest centred crop with the model's aspect ratio is averaged to the model's pixels and
    rounded to its levels. For data sets of digits, an image with a light background, or one that
    does not fit the model exactly, is segmented first unless ``unchanged`` is set.

    Raises:
        UserError: if there is no file, or it is not an image.
    """
    if not path:
        raise UserError("There is no image. Upload one, or click on an example.")
    _, height, width = config.image_shape
    whole = _read_rgb(path)
    image = prepare_image(whole, config)
    converted = to_pil(to_uint8(image)[0]).convert("RGB")
    enlarged = converted.resize(whole.size, Image.Resampling.NEAREST)
    is_small = whole.width < width or whole.height < height
    is_changed = is_small or np.asarray(ImageChops.difference(enlarged, whole)).any()
    grey = whole.convert("L")
    is_light = ImageStat.Stat(grey).median[0] >= 128
    if config.dataset in FRAMES and not unchanged and (is_changed or is_light):
        if (ink := segment_ink(grey)) is not None:
            return Prepared(prepare_image(frame_digit(ink, config), config), (SEGMENTED,))
    changed = CHANGED.format(width=width, height=height, levels=config.num_levels)
    return Prepared(image, (changed,) if is_changed else ())


def read_canvas(path: str | Path | None, config: EBMConfig) -> Image.Image:
    """Return a drawing of light strokes on black as a grey image.

    Raises:
        UserError: if the canvas is empty, or the model takes colour images.
    """
    if config.image_shape[0] != 1:
        raise UserError(NO_COLOUR)
    drawing = _read_rgb(path).convert("L") if path else None
    if drawing is None or drawing.getbbox() is None:
        raise UserError("The canvas is empty. Draw a digit.")
    return drawing


def read_drawing(path: str | Path | None, config: EBMConfig) -> Prepared:
    """Return a drawing as an input of a model. For data sets of digits, it is scaled and centred
    like the digits. Raises as ``read_canvas`` does."""
    drawing = read_canvas(path, config)
    if config.dataset in FRAMES:
        drawing = frame_digit(drawing, config)
    return Prepared(prepare_image(drawing, config))


def _read_rgb(path: str | Path) -> Image.Image:
    """Return an image file in RGB. Transparent pixels become white, or black if the ink is light.
    Error messages hide the folder of the file."""
    path = Path(path)
    with hide_path(path, path.name):
        whole = read_image(path, keep_alpha=True)
    if whole.mode != "RGBA":
        return whole.convert("RGB")
    shade, alpha = (np.asarray(part, float) for part in whole.convert("LA").split())
    is_light = (shade * alpha).sum() > 127.5 * alpha.sum()
    background = Image.new("RGBA", whole.size, "black" if is_light else "white")
    return Image.alpha_composite(background, whole).convert("RGB")


def frame_digit(ink: Image.Image, config: EBMConfig) -> Image.Image:
    """Return light ink on black as a square of ``SIDE`` pixels, scaled and centred like the digits
    of a model's data."""
    frame, box = FRAMES[config.dataset], ink.getbbox()
    grid = max(1, round(frame.grid * SIDE))
    shares = frame.size(box[2] - box[0], box[3] - box[1])
    size = tuple(max(1, round(share * SIDE / grid)) * grid for share in shares)
    digit = ink.crop(box).resize(size, Image.Resampling.BOX)
    mass, corner = np.asarray(digit, dtype=float), []
    for profile in (mass.sum(0), mass.sum(1)):
        centre = np.average(np.arange(len(profile)) + 0.5, weights=profile)
        begin = np.clip(frame.centre * SIDE - centre, 0, SIDE - len(profile))
        corner.append(round(float(begin) / grid) * grid)
    square = Image.new("L", (SIDE, SIDE))
    square.paste(digit, tuple(corner))
    return square


def segment_ink(photo: Image.Image) -> Image.Image | None:
    """Return the ink of a grey photograph of a digit, light on black, or None if nothing stands
    out from the background.

    The background is a local median. Ink is darker or lighter than it. Thin lines, such as ruled
    paper, and small components are removed.
    """
    photo = photo.copy()
    photo.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.BOX)
    grey = np.asarray(photo, dtype=float)
    # Strokes cover less than half of a window this wide, so its median is the background. The
    # median runs at half resolution, as its memory grows with the fourth power of the width.
    coarse = grey[::2, ::2]
    background = ndimage.median_filter(coarse, max(3, min(coarse.shape) // 2), mode="nearest")
    background = background.repeat(2, 0).repeat(2, 1)[: grey.shape[0], : grey.shape[1]]
    contrast = ndimage.gaussian_filter(grey - background, min(grey.shape) / 200)
    if (contrast**3).sum() < 0:  # dark ink
        contrast = -contrast
    is_ink = contrast > max(MIN_SHARE * contrast.max(), MIN_CONTRAST)
    depth = ndimage.distance_transform_edt(is_ink)
    thin = depth.max() / 3
    is_ink &= ndimage.distance_transform_edt(depth <= thin) <= thin + 1
    components, num = ndimage.label(is_ink, np.ones((3, 3)))
    if not num:
        return None
    sizes = ndimage.sum_labels(contrast, components, range(1, num + 1))
    kept = np.isin(components, 1 + np.flatnonzero(sizes >= MIN_COMPONENT * sizes.max()))
    full = np.quantile(contrast[kept], 0.6)
    # nearly black and white, like the data before they were reduced
    ink = np.clip(SLOPE * (contrast / full - 0.5) + 0.5, 0, 1) * ndimage.binary_dilation(kept)
    return Image.fromarray((255 * ink).round().astype(np.uint8))


def black_canvas(label: str) -> gr.ImageEditor:
    """Black canvas with a white brush."""
    black = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    blank = {"background": black, "layers": [], "composite": black}
    canvas = gr.ImageEditor(
        value=blank,
        label=label,
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
    # gradio's clear button also removes the background and the brush; setting the value restores
    # them
    canvas.clear(lambda: blank, None, canvas, **AT_ONCE)
    return canvas
