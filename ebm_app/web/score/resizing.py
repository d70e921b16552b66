"""The middle of a picture at a model's size, and what that did to it."""

from typing import NamedTuple

from PIL import Image, ImageChops, ImageOps

Pixels = tuple[int, int]


class Fitted(NamedTuple):
    """A picture of a model's size, what was done to it, and whether its pixels changed."""

    picture: Image.Image
    steps: tuple[str, ...]
    changed: bool


def fit(picture: Image.Image, size: Pixels) -> Fitted:
    """The middle of a picture, of the aspect ratio of ``size`` (width, height), with areas
    averaged to as many pixels.

    A picture whose pixels are repeated in blocks gives them back unchanged.
    """
    scale = min(picture.width / size[0], picture.height / size[1])
    cut = round(scale * size[0]), round(scale * size[1])
    small = ImageOps.fit(picture, size, method=Image.Resampling.BOX)
    middle = ImageOps.fit(picture, cut, method=Image.Resampling.NEAREST)
    enlarged = cut[0] < size[0]
    changed = enlarged or differ(small.resize(cut, Image.Resampling.NEAREST), middle)
    steps = []
    if cut != picture.size:
        steps.append(f"cropped from {_text(picture.size)} to its middle {_text(cut)} pixels")
    if cut != size:
        how = "" if changed else ", which changed none as they were repeated in blocks"
        steps.append(f"resized from {_text(cut)} to {_text(size)} pixels{how}")
    return Fitted(small, tuple(steps), changed)


def differ(one: Image.Image, other: Image.Image) -> bool:
    """Whether any pixel of two pictures of one size and mode differs."""
    extrema = ImageChops.difference(one, other).getextrema()
    return any(high for _, high in (extrema if one.mode == "RGB" else [extrema]))


def _text(size: Pixels) -> str:
    return "x".join(map(str, size))
