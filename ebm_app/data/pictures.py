"""Image files: reading with Pillow, conversion to grey levels, and writing as PNG.

Orientation tags are applied; colour profiles are not.
"""

import io
import math
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from ebm_app.data.levels import ImageFormat, to_display
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import NumLevels, check_argument
from ebm_app.utils.files import open_file, replace_file

#: Pillow's decoders, selected by file content, not by name
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK")
DEEP = "The image '{}' has more than 8 bits per channel. Save it as 8-bit."
#: Path or content of an image file, or a Pillow image
Source = Path | BinaryIO | Image.Image
#: Path of an image file, or a Pillow image
Picture = str | os.PathLike | Image.Image
#: (image, name in error messages) -> uint8 (C, H, W)
ToPixels = Callable[[Source, str], Tensor]


def read_image(source: Source, name: str | None = None) -> Image.Image:
    """Read an image in mode L (grey) or RGB.

    Args:
        name: name of the image in error messages; None for the path.

    Raises:
        UserError: for an unreadable or transparent image, several frames, and more than 8 bits.
    """
    name = name or str(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(source, Image.Image):
                return _to_grey_or_rgb(source, name)
            content = open_file(source) if isinstance(source, Path) else source
            with content, Image.open(content, formats=FORMATS) as opened:
                return _to_grey_or_rgb(opened, name)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = Image.MAX_IMAGE_PIXELS
        raise UserError(f"The image '{name}' has more than {limit} pixels. Resize it.") from error
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise many exception types
        raise UserError(f"Cannot read '{name}' as an image. Repair or remove it.") from error


def _to_grey_or_rgb(image: Image.Image, name: str) -> Image.Image:
    """Decode an opaque 8-bit image of one frame, rotated by its orientation tag, in mode L or
    RGB."""
    # MPO is a JPEG format of phones; its first frame is the photo
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise UserError(f"'{name}' has several frames. Save each frame as a file.")
    if _has_deep_colours(image):
        raise UserError(DEEP.format(name))
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        raise UserError(DEEP.format(name))
    if image.mode not in MODES:
        raise UserError(f"The image '{name}' has mode {image.mode}. Save it as grey or RGB.")
    if image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255:
        raise UserError(f"The image '{name}' is transparent. Save it without an alpha channel.")
    image.info.pop("transparency", None)
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def _has_deep_colours(image: Image.Image) -> bool:
    """Whether an image file has 16-bit colours, which Pillow converts to 8 bits. Only the raw mode
    ("RGB;16B") reveals this, and only before the image is decoded."""
    if not isinstance(image, ImageFile.ImageFile):
        return False
    if image.tile or not image.filename:
        return ";16" in str(image.tile)
    with suppress(OSError), Image.open(image.filename) as unread:
        return ";16" in str(unread.tile)
    return False


def to_pixels(item: Source, name: str, resolution: int | None = None) -> Tensor:
    """Convert an image to uint8 (C, H, W), C = 1 or 3.

    Args:
        name: name of the image in error messages.
        resolution: side in pixels. The shorter side is resized to it with an antialiased triangle
            filter, then the image is centre-cropped. None keeps the size.
    """
    image = read_image(item, name)
    if resolution is not None:
        image = ImageOps.fit(image, (resolution,) * 2, method=Image.Resampling.BILINEAR)
    return _pixels_of(image)


def _pixels_of(image: Image.Image) -> Tensor:
    """Return the pixels of a grey or RGB image, uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def convert_image(
    item: Source, name: str, image_shape: tuple[int, ...], num_levels: int, resize: bool = False
) -> Tensor:
    """Convert an image to the levels of a model, uint8 (C, H, W).

    Args:
        image_shape, num_levels: shape (C, H, W) and number of levels of the model's images.
        resize: centre-crop and resize the image as in ``to_pixels``, convert it to grey or RGB,
            and round its pixels to the levels.

    Raises:
        UserError: without ``resize``, for an image of another size or colour, and for pixels other
            than the 8-bit values of the levels, as in saved samples.
    """
    mode, size = _mode_of(image_shape), image_shape[:0:-1]
    image = read_image(item, name)
    if resize:
        image = ImageOps.fit(image.convert(mode), size, method=Image.Resampling.BILINEAR)
    levels, is_exact = nearest_levels(_pixels_of(image), num_levels)
    if not resize and (image.mode, image.size, is_exact) != (mode, size, True):
        kinds = {"L": "grey", "RGB": "RGB"}
        width, height = image.size
        raise UserError(
            f"The image '{name}' is {width}x{height} {kinds[image.mode]}, but the model expects "
            f"{size[0]}x{size[1]} {kinds[mode]} with {num_levels} levels. Enable resize to "
            "convert it."
        )
    return levels


def read_images(
    items: Iterable[Picture],
    image_shape: tuple[int, int, int],
    num_levels: int,
    resize: bool = False,
) -> Tensor:
    """Read image files as the grey levels of a model, uint8 (N, C, H, W).

    >>> photo = Image.new("RGB", (640, 480))
    >>> read_images([photo], (1, 8, 8), num_levels=17, resize=True).shape
    torch.Size([1, 1, 8, 8])

    Args:
        items: paths of image files, or Pillow images.
        image_shape, num_levels: as in the ``config`` of the model.
        resize: centre-crop and resize images, and convert them to the colour and levels of the
            model. Without it, pixels are the 8-bit values of the levels, as in saved samples.

    Raises:
        UserError: for an image that cannot be read, and, without ``resize``, for one of another
            size, colour or levels.
    """
    if len(image_shape) != 3:
        raise UserError(f"Expected an image shape (C, H, W), got {tuple(image_shape)}.")
    num_levels = check_argument(NumLevels, "num_levels", num_levels)
    items = [] if isinstance(items, Picture) else [*items]
    if not items or not all(isinstance(item, Picture) for item in items):
        raise UserError("Expected a list of at least one path or Pillow image. Pass [image].")
    sources = [item if isinstance(item, Image.Image) else Path(item) for item in items]
    names = [f"image {i}" if isinstance(x, Image.Image) else str(x) for i, x in enumerate(sources)]
    levels = [
        convert_image(source, name, tuple(image_shape), num_levels, resize)
        for source, name in zip(sources, names, strict=True)
    ]
    return torch.stack(levels)


def _mode_of(image_shape: tuple[int, ...]) -> str:
    """Return Pillow's mode of images (C, H, W) of a model."""
    channels = image_shape[0]
    if channels not in (1, 3):
        raise UserError(f"Expected a model of grey or RGB images, got {channels} channels.")
    return "L" if channels == 1 else "RGB"


def nearest_levels(pixels: Tensor, num_levels: int) -> tuple[Tensor, bool]:
    """Return the levels nearest to 8-bit pixels, uint8 ``(*)``, and whether all pixels are the
    8-bit values of these levels."""
    shades = to_display(torch.arange(num_levels), num_levels)
    middles = (shades[1:] + shades[:-1]) / 2
    levels = torch.bucketize(pixels.contiguous() / 255, middles).byte()
    return levels, torch.equal((shades * 255).round().byte()[levels.long()], pixels)


def prepare_image(image: Image.Image, form: ImageFormat) -> Tensor:
    """Convert an image for a model: (1, C, H, W) in [0, 1], rounded to its levels.

    The image is centre-cropped to the aspect ratio and resized by area averaging.
    """
    image = ImageOps.fit(
        image.convert(_mode_of(form.image_shape)), form.image_shape[:0:-1], Image.Resampling.BOX
    )
    levels, _ = nearest_levels(_pixels_of(image), form.num_levels)
    return to_display(levels, form.num_levels).unsqueeze(0)


def to_uint8(images: Tensor) -> np.ndarray:
    """Convert images (B, C, H, W) in [0, 1] to pixels (B, H, W, C) uint8."""
    return (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def to_pil(pixels: np.ndarray) -> Image.Image:
    """Convert pixels (H, W, 1 or 3) uint8 to a Pillow image, grey or RGB."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def save_image(pixels: np.ndarray, path: Path) -> None:
    """Write pixels (H, W, 1 or 3) uint8 as a PNG, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    to_pil(pixels).save(content, "PNG")
    replace_file(path, content.getvalue())


def image_grid(images: Tensor, min_pixels: int = 320) -> np.ndarray:
    """Tile images (B, C, H, W) in [0, 1] into a near-square grid (H', W', C) uint8.

    Pixels are repeated, without interpolation, until the grid is at least ``min_pixels`` wide.
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
