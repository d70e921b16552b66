"""A digit in the frame of an image as in the model's data: its size, and its centre of mass."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

SIDE = 280
#: of 255, by which ink is lighter than the ground of an uploaded file
CONTRAST = 26

Size = tuple[float, float]
Box = tuple[int, int, int, int]


def fill_height(width: float, height: float) -> Size:
    """Size of an inked box as the 8 x 8 digits have it: all of the height, at most three quarters
    of the width, for which wide ones are squeezed."""
    return min(width / height, 0.75), 1.0


def fit_square(width: float, height: float) -> Size:
    """Size of an inked box as in MNIST: its longer side takes 20 of 28 pixels."""
    share = 20 / 28 / max(width, height)
    return width * share, height * share


class Frame(NamedTuple):
    """Where the ink of a data set lies in an image: the shares of the sides that its box takes,
    where its centre of mass is, and the sides of the pixels on which boxes begin and end, in
    shares of a side; 0 for boxes that lie anywhere."""

    size: Callable[[float, float], Size]
    centre: float = 0.5
    grid: float = 0.0


#: by data set of light digits on a dark ground. MNIST's were centred on the middle of a pixel,
#: and moved by whole pixels
FRAMES = {"digits": Frame(fill_height), "mnist": Frame(fit_square, 14.5 / 28, 1 / 28)}


def framed(picture: Image.Image, box: Box, config: EBMConfig) -> Image.Image:
    """The box (left, top, right, bottom) of a grey picture, scaled as the model's data are, in a
    black square of ``SIDE`` pixels; its centre of mass is where theirs is, short of the edges."""
    left, top, right, bottom = box
    frame = FRAMES[config.dataset]
    grid = max(1, round(frame.grid * SIDE))
    shares = frame.size(right - left, bottom - top)
    size = tuple(max(1, round(share * SIDE / grid)) * grid for share in shares)
    part = picture.crop(box).resize(size, Image.Resampling.BOX)
    ink = np.asarray(part, dtype=float)
    corner = [_begin(ink.sum(axis), frame.centre * SIDE, grid) for axis in (0, 1)]
    square = Image.new("L", (SIDE, SIDE))
    square.paste(part, tuple(corner))
    return square


def _begin(ink: np.ndarray, middle: float, grid: int) -> int:
    """Where a profile of ink begins if its centre of mass is in the middle, short of the edges."""
    centre = np.average(np.arange(len(ink)) + 0.5, weights=ink)
    begin = np.clip(middle - centre, 0, SIDE - len(ink))
    return round(float(begin) / grid) * grid


def ink_box(picture: Image.Image, config: EBMConfig) -> Box:
    """The box of what is lighter than the ground of a grey picture, for a model of digits.

    Raises:
        UserError: for a model of other data, and a picture without ink.
    """
    if config.dataset not in FRAMES:
        raise UserError(
            "the model's data are not digits in a frame: send the image without framing it"
        )
    limit = ground(picture) + CONTRAST
    box = picture.point(lambda value: 255 * (value > limit)).getbbox()
    if box is None:
        raise UserError(
            "nothing in the image is lighter than its ground, so there is no digit to frame: "
            "invert dark digits on a light ground"
        )
    return box


def ground(picture: Image.Image) -> float:
    """The brightness of the ground of a grey picture, 0 to 255: the median of its edge."""
    pixels = np.asarray(picture)
    edge = (pixels[0], pixels[-1], pixels[1:-1, 0], pixels[1:-1, -1])
    return float(np.median(np.concatenate(edge)))
