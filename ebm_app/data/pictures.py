"""Reading and writing single image files."""

import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ebm_app.data.levels import NUM_VALUES, to_display, to_levels
from ebm_app.utils.errors import UserError
from ebm_app.utils.files import open_file, replace_file
from ebm_app.utils.tensors import as_tensor

# Only these decoders may run: the content of a file decides its format, not its name.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")


def read_image(path: Path, keep_alpha: bool = False) -> Image.Image:
    """Read one file to mode L (grey) or RGB; one with transparent parts to RGBA, if these may
    stay."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_file(path) as file, Image.open(file, formats=FORMATS) as opened:
                # MPO is the JPEG of some telephones, whose first frame is the photograph.
                animated = getattr(opened, "is_animated", False) and opened.format != "MPO"
                # Pillow turns 16-bit colour into 8-bit; only the raw mode ("RGB;16B") tells.
                sixteen_bit = ";16" in str(opened.tile)
                image = ImageOps.exif_transpose(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        most = f"more than {Image.MAX_IMAGE_PIXELS} pixels"
        raise UserError(f"the image '{path}' has {most}: make it smaller") from error
    except UserError:
        raise
    except Exception as error:  # of any kind, by what is there
        raise UserError(f"cannot read '{path}' as an image: repair or remove it") from error
    if animated:
        raise UserError(f"the image '{path}' has several frames: save each as a file of its own")
    if sixteen_bit:
        raise UserError(f"the image '{path}' has more than 8 bits per channel: save it as 8-bit")
    return to_grey_or_rgb(image, str(path), keep_alpha)


def to_grey_or_rgb(image: Image.Image, path: str, keep_alpha: bool = False) -> Image.Image:
    """An image in mode L (grey) or RGB."""
    if image.mode[0] in "IF":
        raise UserError(f"the image '{path}' has more than 8 bits per channel: save it as 8-bit")
    if image.mode not in MODES:
        raise UserError(f"the image '{path}' has mode {image.mode}: save it as grey or RGB")
    if image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255:
        if keep_alpha:
            return image.convert("RGBA")
        raise UserError(f"the image '{path}' is transparent: save it without an alpha channel")
    image.info.pop("transparency", None)  # an opaque one carries nothing
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def to_pixels(item: Any, name: str, resolution: int | None = None) -> Tensor:
    """The values of one image, uint8 (C, H, W): one of Pillow's, of which the centre is brought to
    ``resolution`` if that is given, or (C, H, W) as uint8 or as floats in [0, 1]."""
    if not isinstance(item, Image.Image):
        values = as_tensor(item, name)
        if values.ndim != 3 or len(values) not in (1, 3):
            raise UserError(f"{name} has shape {tuple(values.shape)}: give (C, H, W), grey or RGB")
        return to_levels(values, NUM_VALUES)
    image = to_grey_or_rgb(item, name)
    if resolution is not None:
        image = ImageOps.fit(image, (resolution,) * 2, method=Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def prepare_image(image: Image.Image, form: Any) -> Tensor:
    """The centre of an image in a model's size and colours, areas averaged, (1, C, H, W) in [0, 1]
    at the nearest levels; ``form`` is the model's configuration."""
    channels, height, width = form.image_shape
    if channels not in (1, 3):
        raise UserError(f"the model's images have {channels} channels: choose one of grey or RGB")
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), Image.Resampling.BOX)
    pixels = torch.from_numpy(np.array(image)).reshape(height, width, channels).permute(2, 0, 1)
    shades = to_display(torch.arange(form.num_levels), form.num_levels)
    middles = (shades[1:] + shades[:-1]) / 2
    return shades[torch.bucketize(pixels.contiguous() / 255, middles)].unsqueeze(0)


def to_uint8(images: Tensor) -> np.ndarray:
    """Images (B, C, H, W) in [0, 1] -> (B, H, W, C) uint8."""
    return (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def to_pil(pixels: np.ndarray) -> Image.Image:
    """Pixels (H, W, 1 or 3) uint8 as a picture, grey or RGB."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def save_image(pixels: np.ndarray, path: Path) -> None:
    """Write pixels (H, W, 1 or 3) uint8 as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    to_pil(pixels).save(content, "PNG")
    replace_file(path, content.getvalue())


def image_grid(images: Tensor, min_pixels: int = 320) -> np.ndarray:
    """Images (B, C, H, W) in [0, 1] row by row in one near-square sheet (H', W', C) uint8.

    Pixels are repeated, never interpolated, until the sheet is at least ``min_pixels`` wide.
    """
    pixels = to_uint8(images)
    num, height, width, channels = pixels.shape
    columns = math.ceil(math.sqrt(num))
    rows = math.ceil(num / columns)
    grid = np.full((rows, height + 1, columns, width + 1, channels), 128, dtype=np.uint8)
    for index in range(num):
        grid[index // columns, :height, index % columns, :width] = pixels[index]
    sheet = grid.reshape(rows * (height + 1), columns * (width + 1), channels)[:-1, :-1]
    factor = max(1, math.ceil(min_pixels / sheet.shape[1]))
    return sheet.repeat(factor, 0).repeat(factor, 1)
