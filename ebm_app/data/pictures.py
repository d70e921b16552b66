"""Pictures: the reader of image files, conversion to grey levels, and writing as PNG.

A picture is read as it is, or refused: 8 bits per channel, opaque, one frame, upright by its
orientation tag. Colour profiles are not applied.
"""

import io
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from ebm_app.data.levels import NUM_VALUES, to_display
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import ImageShape, NumLevels, check_argument, user_errors
from ebm_app.utils.files import open_file, replace_file

#: Pillow's decoders of files without loss of bits, selected by file content, not by name
FORMATS = ("PNG", "JPEG", "WebP", "BMP", "TIFF")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK")
DEEP = "The image has more than 8 bits per channel. Save it as 8-bit."
#: Path or content of an image file, or a Pillow image
Source = Path | BinaryIO | Image.Image
#: Path of an image file, or a Pillow image
Picture = str | os.PathLike | Image.Image
#: Grey or RGB image -> uint8 (C, H, W)
Convert = Callable[[Image.Image], Tensor]


def read_picture(source: Source, name: str) -> Image.Image:
    """Read a picture in mode L (grey) or RGB.

    Args:
        name: name of the image, with which error messages begin.

    Raises:
        UserError: for an unreadable or transparent image, several frames, more than 8 bits per
            channel, and more pixels than Pillow's limit, which is checked before decoding.
    """
    with user_errors(name):
        picture, is_animated = decode(source)
        if is_animated:
            raise UserError("The image has several frames. Save each frame as a file.")
        if is_transparent(picture):
            raise UserError("The image is transparent. Save it without an alpha channel.")
        return to_grey_or_rgb(picture)


def read_pixels(source: Source, name: str, convert: Convert) -> Tensor:
    """Read a picture and convert it to uint8 (C, H, W). Error messages begin with the name."""
    picture = read_picture(source, name)
    with user_errors(name):
        return convert(picture)


def decode(source: Source, formats: Sequence[str] = FORMATS) -> tuple[Image.Image, bool]:
    """Decode the first frame of an 8-bit image, rotated by its orientation tag. Return it in one
    of ``MODES``, and whether there are other frames.

    Args:
        formats: names of Pillow's decoders.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(source, Image.Image):
                return _decode(source)
            content = open_file(source) if isinstance(source, Path) else source
            with content, Image.open(content, formats=formats) as opened:
                return _decode(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = Image.MAX_IMAGE_PIXELS
        raise UserError(f"The image has more than {limit:,} pixels. Resize it.") from error
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise many exception types
        raise UserError(
            f"This file cannot be read as an image. Use an intact {', '.join(formats[:-1])} or "
            f"{formats[-1]} file; save others, such as SVG and HEIC, as PNG first."
        ) from error


def _decode(image: Image.Image) -> tuple[Image.Image, bool]:
    # MPO is a JPEG format of phones; its first frame is the photo
    is_animated = getattr(image, "is_animated", False) and image.format != "MPO"
    if 0 in image.size:
        raise UserError(f"The image is empty: {image.width}x{image.height} pixels. Leave it out.")
    if _has_deep_colours(image):
        raise UserError(DEEP)
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        raise UserError(DEEP)
    if image.mode not in MODES:
        raise UserError(f"The image has mode {image.mode}. Save it as grey or RGB.")
    return image, is_animated


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


def is_transparent(picture: Image.Image) -> bool:
    """Whether a pixel of a picture is not opaque."""
    return picture.has_transparency_data and picture.convert("RGBA").getextrema()[3][0] < 255


def to_grey_or_rgb(picture: Image.Image) -> Image.Image:
    """Convert an opaque picture to mode L or RGB."""
    picture.info.pop("transparency", None)
    return picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")


def to_pixels(picture: Image.Image) -> Tensor:
    """Return the pixels of a grey or RGB picture, uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(picture))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def nearest_levels(pixels: Tensor, num_levels: int) -> Tensor:
    """Return the levels nearest to 8-bit pixels, uint8: ``(*) -> (*)``."""
    shades = to_display(torch.arange(num_levels), num_levels)
    middles = (shades[1:] + shades[:-1]) / 2
    return torch.bucketize(pixels.contiguous() / 255, middles).byte()


def exact_levels(picture: Image.Image, image_shape: Sequence[int], num_levels: int) -> Tensor:
    """Return the levels of a picture that has the format of a model, uint8 (C, H, W). Grey level k
    of L is the pixel 255 k / (L - 1), as in saved samples.

    Raises:
        UserError: for a picture of another size, colour or levels.
    """
    mode, (height, width) = _mode_of(image_shape), image_shape[1:]
    pixels = to_pixels(picture)
    levels = nearest_levels(pixels, num_levels)
    is_exact = torch.equal((to_display(levels, num_levels) * 255).round().byte(), pixels)
    if (picture.mode, picture.size, is_exact) != (mode, (width, height), True):
        kinds = {"L": "grey", "RGB": "RGB"}
        raise UserError(
            f"The image is {picture.width}x{picture.height} {kinds[picture.mode]}, but the model "
            f"expects {width}x{height} {kinds[mode]} with {num_levels} levels. Enable resize to "
            "convert it."
        )
    return levels


def fitted_levels(
    picture: Image.Image,
    image_shape: Sequence[int],
    num_levels: int,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> Tensor:
    """Convert a picture to the format of a model, uint8 levels (C, H, W): convert it to grey or
    RGB, crop its centre to the aspect ratio of the model, resize it, and round its pixels to the
    nearest levels.

    Args:
        resample: Pillow's filter of the size: an antialiased triangle, or BOX for the mean of the
            pixels in each pixel of the result.
    """
    size = image_shape[2], image_shape[1]
    fitted = ImageOps.fit(picture.convert(_mode_of(image_shape)), size, method=resample)
    return nearest_levels(to_pixels(fitted), num_levels)


def square_pixels(picture: Image.Image, side: int) -> Tensor:
    """Crop and resize a picture to a square of its own colours, uint8 (C, side, side)."""
    return fitted_levels(picture, (len(picture.getbands()), side, side), NUM_VALUES)


def _mode_of(image_shape: Sequence[int]) -> str:
    """Return Pillow's mode of images (C, H, W) of a model."""
    channels = image_shape[0]
    if channels not in (1, 3):
        raise UserError(f"Expected a model of grey or RGB images, got {channels} channels.")
    return "L" if channels == 1 else "RGB"


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
            model, see ``fitted_levels``. Without it, they must match, see ``exact_levels``.

    Raises:
        UserError: for an image that cannot be read, an invalid format, and, without ``resize``,
            for an image of another size, colour or levels.
    """
    image_shape = check_argument(ImageShape, "image_shape", image_shape)
    num_levels = check_argument(NumLevels, "num_levels", num_levels)
    items = [*items] if isinstance(items, Iterable) and not isinstance(items, Picture) else []
    if not items or not all(isinstance(item, Picture) for item in items):
        raise UserError("Expected a list of at least one path or Pillow image. Pass [image].")
    convert = partial(
        fitted_levels if resize else exact_levels, image_shape=image_shape, num_levels=num_levels
    )
    levels = []
    for index, item in enumerate(items):
        if isinstance(item, Image.Image):
            levels.append(read_pixels(item, f"image {index}", convert))
        else:
            levels.append(read_pixels(Path(item), str(item), convert))
    return torch.stack(levels)


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
