"""A digit in the frame of an image as in the model's data: its size, and its centre of mass."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

#: pixels of the canvas on either side
SIDE = 280
#: of 255, by which ink is lighter than the ground of an uploaded file
CONTRAST = 26
Box = tuple[int, int, int, int]


class DigitFrame(NamedTuple):
    """Where the ink of a data set lies in an image: the shares of the sides that a box of given
    width and height takes, where its centre of mass is, and the sides of the pixels on which boxes
    begin and end, in shares of a side; 0 for boxes that lie anywhere."""

    size: Callable[[float, float], tuple[float, float]]
    centre: float = 0.5
    grid: float = 0.0


#: by data set of light digits on a dark ground. The 8 x 8 digits take all of the height and at
#: most three quarters of the width, for which wide ones are squeezed. The longer side of MNIST's
#: takes 20 of 28 pixels; they were centred on the middle of a pixel, and moved by whole pixels
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


def framed(picture: Image.Image, box: Box, config: EBMConfig) -> Image.Image:
    """The box (left, top, right, bottom) of a grey picture, scaled as the model's data are, in a
    black square of ``SIDE`` pixels; its centre of mass is where theirs is, short of the edges."""
    frame, (left, top, right, bottom) = FRAMES[config.dataset], box
    grid = max(1, round(frame.grid * SIDE))
    shares = frame.size(right - left, bottom - top)
    size = tuple(max(1, round(share * SIDE / grid)) * grid for share in shares)
    part = picture.crop(box).resize(size, Image.Resampling.BOX)
    ink, corner = np.asarray(part, dtype=float), []
    for profile in (ink.sum(0), ink.sum(1)):
        centre = np.average(np.arange(len(profile)) + 0.5, weights=profile)
        begin = np.clip(frame.centre * SIDE - centre, 0, SIDE - len(profile))
        corner.append(round(float(begin) / grid) * grid)
    square = Image.new("L", (SIDE, SIDE))
    square.paste(part, tuple(corner))
    return square


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
