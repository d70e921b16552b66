"""Images to PNG files, with exact pixels."""

import io
import math
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from ebm_app.utils.writing import replace_file


def to_uint8(images: Tensor) -> np.ndarray:
    """Images (B, C, H, W) in [0, 1] -> (B, H, W, C) uint8."""
    return (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def to_picture(pixels: np.ndarray) -> Image.Image:
    """Pixels (H, W, 1 or 3) uint8 as a picture, grey or RGB."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def save_image(pixels: np.ndarray, path: Path) -> None:
    """Write pixels (H, W, 1 or 3) uint8 as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    to_picture(pixels).save(content, "PNG")
    replace_file(path, content.getvalue())


def grid_of(images: Tensor, min_pixels: int = 320) -> np.ndarray:
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
