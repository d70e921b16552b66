"""Conversion of image files and drawings to a model's image size and grey levels.

For data sets of digits, a drawing is scaled and centred like the digits of the data set.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageOps
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.levels import to_display
from ebm_app.data.pictures import (
    FORMATS,
    decode,
    fitted_levels,
    is_transparent,
    to_grey_or_rgb,
    to_pil,
    to_uint8,
)
from ebm_app.evaluation.handwriting import find_ink
from ebm_app.utils.errors import UserError

#: Side of a scaled drawing in pixels
SIDE = 280
NO_COLOUR = "This model takes colour images, and the canvas is grey. Upload an image instead."
CHANGED = (
    "The image was cropped, resized or rounded, which changes its likelihood. An image of "
    "{width}x{height} pixels with the model's {levels} levels needs no change."
)
#: Max value of a faint pixel, and min number of faint pixels in an image with compression noise.
#: MNIST test digits have at most 33, and at least 52 as JPEG files of quality 50 to 95.
FAINT, MIN_FAINT = 16 / 255, 45
INVERTED = "Dark on light was inverted, since the model's images are light on black."
FRAMED = "The ink was taken from its paper, scaled and centred like the model's digits."
#: Pillow's decoders of uploads
UPLOADS = (*FORMATS, "GIF", "AVIF")
FIRST_FRAME = "Only the first frame of the animation was used."
TRANSPARENT = "Transparent parts were put on white."
COMPRESSED = "The background has compression noise, as in a JPEG, which costs bits. Use a PNG."


class DigitFrame(NamedTuple):
    """Position of the digits of a data set in their images.

    ``size`` maps the width and height of a digit's bounding box to the shares of the image that it
    fills. ``centre`` is the position of the centre of mass, as a share of the image side. ``grid``
    is the pixel size that bounding boxes are aligned to, also as a share; 0 for no alignment.
    """

    size: Callable[[float, float], tuple[float, float]]
    centre: float = 0.5
    grid: float = 0.0


#: Frames by data set. An 8 x 8 digit fills the height and at most three quarters of the width. The
#: longer side of an MNIST digit is 20 of 28 pixels, its centre of mass is at the centre of a
#: pixel, and it is moved by whole pixels.
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


def read_upload(
    path: str | Path, config: EBMConfig, frame: bool = True
) -> tuple[Tensor, list[str]]:
    """Return an image file as an input (1, C, H, W) of a model, and notes on any changes.

    For grey models dark on light is inverted. For data sets of digits, with ``frame``, the ink of
    a photograph or scan is taken from its paper, scaled and centred like a digit. Otherwise the
    largest centred crop with the model's aspect ratio is averaged to the model's pixels. The
    result is rounded to the model's levels.

    Raises:
        UserError: if the file cannot be read.
    """
    picture, notes = decode_upload(Path(path))
    whole = picture.convert("RGB")
    is_exact = fits(whole, config)
    if config.dataset in FRAMES and frame and not is_exact:
        ink = find_ink(whole)
        if ink is not None:
            return to_input(frame_digit(ink, config), config), [*notes, FRAMED]
    if config.image_shape[0] == 1 and is_dark_on_light(whole):
        whole = ImageOps.invert(whole)
        notes.append(INVERTED)
    image = to_input(whole, config)
    if not is_exact:
        _, height, width = config.image_shape
        notes.append(CHANGED.format(width=width, height=height, levels=config.num_levels))
    elif config.dataset in FRAMES:
        num_faint = int(((image > 0) & (image <= FAINT)).sum())
        if num_faint >= MIN_FAINT:
            notes.append(COMPRESSED)
    return image, notes


def fits(whole: Image.Image, config: EBMConfig) -> bool:
    """Return whether an RGB image has the model's levels, at its size or enlarged by repeating
    pixels."""
    _, height, width = config.image_shape
    if whole.width < width or whole.height < height:
        return False
    converted = to_pil(to_uint8(to_input(whole, config))[0]).convert("RGB")
    enlarged = converted.resize(whole.size, Image.Resampling.NEAREST)
    return ImageChops.difference(enlarged, whole).getbbox() is None


def decode_upload(path: Path) -> tuple[Image.Image, list[str]]:
    """Read an image file for display, with notes on what was left out: the first frame of an
    animation, in mode L or RGB, on white where it is transparent.

    Raises:
        UserError: if the file cannot be read.
    """
    picture, is_animated = decode(path, UPLOADS)
    notes = [FIRST_FRAME] if is_animated else []
    if is_transparent(picture):
        notes.append(TRANSPARENT)
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return to_grey_or_rgb(picture), notes


def to_input(picture: Image.Image, config: EBMConfig) -> Tensor:
    """Convert a picture to an input (1, C, H, W) of a model: its largest centred crop with the
    aspect ratio of the model, averaged to its pixels and rounded to its levels."""
    form = config.image_shape, config.num_levels
    levels = fitted_levels(picture, *form, resample=Image.Resampling.BOX)
    return to_display(levels, config.num_levels).unsqueeze(0)


def is_dark_on_light(image: Image.Image) -> bool:
    """Return whether at least 70 percent of the border of an image is light, as around ink on
    paper, and some of the image is dark."""
    pixels = np.asarray(image.convert("L"))
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return bool((border > 127).mean() >= 0.7 and pixels.min() <= 127)


def prepare_drawing(drawing: Image.Image, config: EBMConfig) -> Tensor:
    """Return a drawing of black strokes on white as an input (1, 1, H, W) of a model. For data
    sets of digits it is scaled and centred like the digits.

    Raises:
        UserError: if the model takes colour images.
    """
    if config.image_shape[0] != 1:
        raise UserError(NO_COLOUR)
    ink = ImageOps.invert(drawing.convert("L"))
    return to_input(frame_digit(ink, config) if config.dataset in FRAMES else ink, config)


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
