"""From a visitor's image file to an image on the grid of a model's levels."""

from pathlib import Path

import gradio as gr
import numpy as np
import torch
from gradio.components.image import ImageData
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ebm_app.data.folder import read_image
from ebm_app.data.levels import to_display
from ebm_app.data.png import to_picture, to_uint8
from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

from . import hints
from .framing import framed, ink_box
from .prepared import Prepared
from .resizing import Fitted, differ, fit

ACCEPTED = (
    "PNG, JPEG, WebP, BMP or TIFF with 8 bits per channel, one frame and no transparency; "
    "anything else is refused with the reason."
)
INVERT = "for dark digits on a light ground, where the model's data are light on dark"
FRAME = "cut out what is lighter than the ground, then scale and centre it; models of digits only"


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
    channels = config.image_shape[0]
    if channels not in (1, 3):
        raise UserError(f"the model's images have {channels} channels: choose one of grey or RGB")
    found = _read(Path(path))
    picture = found.convert("L" if channels == 1 else "RGB")
    steps = ["made grey"] if differ(picture.convert(found.mode), found) else []
    if invert:
        picture = ImageOps.invert(picture)
        steps.append("inverted")
    fitted = (_fit_digit if frame else _fit_middle)(picture, config)
    image = on_levels(fitted.picture, config)
    steps += fitted.steps
    if differ(to_picture(to_uint8(image)[0]), fitted.picture):
        steps.append(f"rounded to {config.num_levels} levels")
    said = [
        *hints.of_file(Path(path)),
        *hints.of_size(fitted.changed, config),
        *hints.of_ground(picture, config, invert),
    ]
    return Prepared(image, tuple(steps), tuple(said))


def preprocess(path: str | Path | None, config: EBMConfig) -> Tensor:
    """The image (1, C, H, W) of ``read_upload``; raises as it does."""
    return read_upload(path, config).image


def _fit_middle(picture: Image.Image, config: EBMConfig) -> Fitted:
    _, height, width = config.image_shape
    return fit(picture, (width, height))


def _fit_digit(picture: Image.Image, config: EBMConfig) -> Fitted:
    _, height, width = config.image_shape
    box = ink_box(picture, config)
    small = framed(picture, box, config).resize((width, height), Image.Resampling.BOX)
    inked = f"{box[2] - box[0]}x{box[3] - box[1]}"
    return Fitted(small, (f"digit of {inked} pixels scaled and centred as the data are",), True)


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


def on_levels(image: Image.Image, config: EBMConfig) -> Tensor:
    """A picture of the model's size and colours, (1, C, H, W) at the nearest levels."""
    channels, height, width = config.image_shape
    pixels = torch.from_numpy(np.array(image)).reshape(height, width, channels).permute(2, 0, 1)
    shades = to_display(torch.arange(config.num_levels), config.num_levels, config.palette)
    middles = (shades[1:] + shades[:-1]) / 2
    return shades[torch.bucketize(pixels.contiguous() / 255, middles)].unsqueeze(0)


def repeated(image: Tensor, draws: int) -> Tensor:
    """An image (1, C, H, W) once for every dequantisation draw, (draws, C, H, W).

    Raises:
        UserError: for fewer than two draws, whose spread is unknown.
    """
    if draws < 2:
        raise UserError(f"{draws} repeats have no standard error: choose at least 2 repeats")
    return image.expand(draws, -1, -1, -1)


def preparation() -> tuple[gr.Checkbox, gr.Checkbox]:
    """What may be done to files before they are scored: ``invert`` and ``frame``."""
    invert = gr.Checkbox(label="Invert", info=INVERT)
    return invert, gr.Checkbox(label="Frame the digit as the data are framed", info=FRAME)


def leave_unread(upload: gr.Image) -> None:
    """Let an upload pass on its file unopened, so that ``preprocess`` can say what is wrong
    with it.

    Its method is replaced, because gradio writes a file beside the source of every subclass.
    """

    def path_of(payload: ImageData | None) -> str | None:
        return payload and payload.path

    upload.preprocess = path_of
