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
from ebm_app.errors import UserError
from ebm_app.models.config import EBMConfig

ACCEPTED = (
    "PNG, JPEG, WebP, BMP or TIFF with 8 bits per channel, one frame and no transparency; "
    "anything else is refused with the reason."
)


def preprocess(path: str | Path | None, config: EBMConfig) -> Tensor:
    """An image file (1, C, H, W) on the model's grid of levels in [0, 1].

    The centre of the model's aspect ratio is cut out, its colours are kept or made grey, areas are
    averaged to the model's pixels, and each value goes to the nearest level.

    Raises:
        UserError: for no file or one that cannot be used, and a model of neither grey nor RGB
            images.
    """
    if not path:
        raise UserError("there is no image: upload one or click on an example")
    channels, height, width = config.image_shape
    if channels not in (1, 3):
        raise UserError(f"the model's images have {channels} channels: choose one of grey or RGB")
    image = _read(Path(path)).convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), method=Image.Resampling.BOX)
    return on_levels(image, config)


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


def leave_unread(upload: gr.Image) -> None:
    """Let an upload hand over its file unopened, so that ``preprocess`` can say what is wrong
    with it.

    Its method is replaced, because gradio writes a file beside the source of every subclass.
    """

    def path_of(payload: ImageData | None) -> str | None:
        return payload and payload.path

    upload.preprocess = path_of
