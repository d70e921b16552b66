"""From a visitor's image file or drawing to an image on the grid of a model's levels."""

from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import numpy as np
import torch
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError
from torch import Tensor

from ebm_app.data.folder import FORMATS, read_image
from ebm_app.data.levels import to_display
from ebm_app.data.png import to_picture, to_uint8
from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

from .digits import FRAMES, framed, ground, ink_box

NO_COLOUR = "the model's images are in colour: upload an image instead of drawing one"
LOSSY = (
    "Hint: {} changes pixels a little, and that costs bits: send the original as PNG if there is "
    "one."
)
RESIZED = "Hint: resizing changed pixels, and that costs bits: {width}x{height} pixels need none."
LIGHT_GROUND = (
    "Hint: the ground is light, but the model's data are light digits on a dark ground: {}."
)


class Prepared(NamedTuple):
    """An image (1, C, H, W) on a model's levels in [0, 1]; what was done to what a visitor gave,
    in the order in which it was; and hints, each a sentence."""

    image: Tensor
    steps: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Steps and hints in words."""
        done = ", ".join(self.steps) or "nothing, the pixels are taken as they are"
        return [f"Done to the image: {done}.", *self.hints]


class Fitted(NamedTuple):
    """A picture of a model's size, what was done to it, and whether its pixels changed."""

    picture: Image.Image
    steps: tuple[str, ...]
    changed: bool


def read_upload(
    path: str | Path | None, config: EBMConfig, invert: bool = False, frame: bool = False
) -> Prepared:
    """An image file on the model's grid of levels in [0, 1], what was done to it, and hints.

    Its colours are kept or made grey, the centre of the model's aspect ratio is cut out, areas are
    averaged to the model's pixels, and each value goes to the nearest level.

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
    found = _read(Path(path))
    picture = found.convert("L" if channels == 1 else "RGB")
    steps = ["made grey"] if _differ(picture.convert(found.mode), found) else []
    if invert:
        picture = ImageOps.invert(picture)
        steps.append("inverted")
    fitted = fit_digit(picture, config) if frame else fit_middle(picture, (width, height))
    image = on_levels(fitted.picture, config)
    steps += fitted.steps
    if _differ(to_picture(to_uint8(image)[0]), fitted.picture):
        steps.append(f"rounded to {config.num_levels} levels")
    hints = [LOSSY.format(name)] if (name := lossy_format(Path(path))) else []
    if fitted.changed:
        hints.append(RESIZED.format(width=width, height=height))
    if config.dataset in FRAMES and ground(picture) >= 128:
        hints.append(LIGHT_GROUND.format("untick Invert" if invert else "tick Invert"))
    return Prepared(image, tuple(steps), tuple(hints))


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
    picture = _read(Path(path)).convert("L") if path else None
    if picture is None or picture.getbbox() is None:
        raise UserError("the canvas is empty: draw a digit on it")
    steps = [f"averaged to {width}x{height} pixels"]
    if config.dataset in FRAMES:
        picture = framed(picture, picture.getbbox(), config)
        steps.insert(0, "scaled and centred as the data are")
    small = picture.resize((width, height), Image.Resampling.BOX)
    return Prepared(on_levels(small, config), tuple(steps))


def drawn_path(drawing: Any) -> Any:
    """The file of a canvas: all its strokes on its ground."""
    composite = drawing.get("composite") if isinstance(drawing, dict) else None
    return composite and composite["path"]


def _read(path: Path) -> Image.Image:
    """``read_image`` in the words of a page, whose visitors need not know where uploads are."""
    try:
        return read_image(path)
    except UserError as error:
        if isinstance(error.__cause__, UnidentifiedImageError):
            raise UserError(
                f"cannot read '{path.name}' as an image: save it as PNG or JPEG"
            ) from None
        raise UserError(str(error).replace(str(path), path.name)) from None


def fit_middle(picture: Image.Image, size: tuple[int, int]) -> Fitted:
    """The middle of a picture, of the aspect ratio of ``size`` (width, height), with areas
    averaged to as many pixels.

    A picture whose pixels are repeated in blocks gives them back unchanged.
    """
    scale = min(picture.width / size[0], picture.height / size[1])
    cut = round(scale * size[0]), round(scale * size[1])
    small = ImageOps.fit(picture, size, method=Image.Resampling.BOX)
    middle = ImageOps.fit(picture, cut, method=Image.Resampling.NEAREST)
    is_enlarged = cut[0] < size[0]
    changed = is_enlarged or _differ(small.resize(cut, Image.Resampling.NEAREST), middle)
    whole, part, new = ("{}x{}".format(*sides) for sides in (picture.size, cut, size))
    steps = []
    if cut != picture.size:
        steps.append(f"cropped from {whole} to its middle {part} pixels")
    if cut != size:
        how = "" if changed else ", which changed none as they were repeated in blocks"
        steps.append(f"resized from {part} to {new} pixels{how}")
    return Fitted(small, tuple(steps), changed)


def fit_digit(picture: Image.Image, config: EBMConfig) -> Fitted:
    """The digit of a grey picture, in the frame of the model's data."""
    _, height, width = config.image_shape
    box = ink_box(picture, config)
    small = framed(picture, box, config).resize((width, height), Image.Resampling.BOX)
    inked = f"{box[2] - box[0]}x{box[3] - box[1]}"
    return Fitted(small, (f"digit of {inked} pixels scaled and centred as the data are",), True)


def lossy_format(path: Path) -> str | None:
    """The name of a readable file's format if it changes pixels; None if it keeps them. The
    content decides, not the ending."""
    with Image.open(path, formats=FORMATS) as image:
        name, compression = image.format, image.info.get("compression")
    if name in ("JPEG", "MPO"):
        return "JPEG"
    if name == "WEBP" and b"VP8 " in path.read_bytes():  # the part of a file without loss is VP8L
        return "lossy WebP"
    if name == "TIFF" and compression in ("jpeg", "tiff_jpeg", "webp"):
        return "TIFF with lossy compression"
    return None


def _differ(one: Image.Image, other: Image.Image) -> bool:
    """Whether any pixel of two pictures of one size and mode differs."""
    return bool(np.asarray(ImageChops.difference(one, other)).any())


def on_levels(image: Image.Image, config: EBMConfig) -> Tensor:
    """A picture of the model's size and colours, (1, C, H, W) at the nearest levels."""
    channels, height, width = config.image_shape
    pixels = torch.from_numpy(np.array(image)).reshape(height, width, channels).permute(2, 0, 1)
    shades = to_display(torch.arange(config.num_levels), config.num_levels, config.palette)
    middles = (shades[1:] + shades[:-1]) / 2
    return shades[torch.bucketize(pixels.contiguous() / 255, middles)].unsqueeze(0)


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
