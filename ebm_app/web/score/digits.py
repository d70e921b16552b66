"""A digit in the frame of an image as in the model's data: its size, and its centre of mass; and
the digit in a photograph."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

from ebm_app.config import EBMConfig

#: pixels of the canvas on either side
SIDE = 280
#: a photograph is made as small as this before its ink is found, in pixels of the longer side
PHOTO = 168
#: of 255, by which ink differs at least from its ground; and by which share of what differs most
CONTRAST, INKED = 26, 0.4
#: a part of the ink is dropped that has less than this share of the largest part's
SPECK = 0.05
#: of the edge of the ink, in units of its height
SLOPE = 5.0


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


def framed(picture: Image.Image, config: EBMConfig) -> Image.Image:
    """The ink of a grey picture, whose ground is black, scaled as the model's data are, in a
    black square of ``SIDE`` pixels; its centre of mass is where theirs is, short of the edges."""
    frame, box = FRAMES[config.dataset], picture.getbbox()
    grid = max(1, round(frame.grid * SIDE))
    shares = frame.size(box[2] - box[0], box[3] - box[1])
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


def ink_of(picture: Image.Image) -> Image.Image | None:
    """The ink of a grey photograph of a digit, light on black: what differs from the ground about
    it, darker or lighter, stretched to the whole range; without specks and lines thinner than the
    strokes. None where nothing stands out from the ground."""
    picture = picture.copy()
    picture.thumbnail((PHOTO, PHOTO), Image.Resampling.BOX)
    grey = np.asarray(picture, dtype=float)
    # strokes cover less than half of a window so wide, so that its median is the ground; the
    # filter takes memory as the fourth power of the width
    coarse = grey[::2, ::2]
    ground = ndimage.median_filter(coarse, max(3, min(coarse.shape) // 2), mode="nearest")
    ground = ground.repeat(2, 0).repeat(2, 1)[: grey.shape[0], : grey.shape[1]]
    flat = ndimage.gaussian_filter(grey - ground, min(grey.shape) / 200)
    if (flat**3).sum() < 0:  # what stands out is darker
        flat = -flat
    inked = flat > max(INKED * flat.max(), CONTRAST)
    depth = ndimage.distance_transform_edt(inked)
    thin = depth.max() / 3
    inked &= ndimage.distance_transform_edt(depth <= thin) <= thin + 1
    parts, num = ndimage.label(inked, np.ones((3, 3)))
    if not num:
        return None
    sizes = ndimage.sum_labels(flat, parts, range(1, num + 1))
    kept = np.isin(parts, 1 + np.flatnonzero(sizes >= SPECK * sizes.max()))
    full = np.quantile(flat[kept], 0.6)
    # nearly of two levels, as the digits of the data were before they were made small
    ink = np.clip(SLOPE * (flat / full - 0.5) + 0.5, 0, 1) * ndimage.binary_dilation(kept)
    return Image.fromarray((255 * ink).round().astype(np.uint8))
