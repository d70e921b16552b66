"""A user's own folder of image files, as integer values 0..255.

Files are found recursively, sorted by their path below the folder ("/" between the parts, on
every system) and read by Pillow. Orientation tags are applied, colour profiles are not. Files with
another ending, gif among them, are not images here; links to folders are not followed.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ebm_app.data.levels import NUM_VALUES, to_display, to_levels
from ebm_app.data.stored import Images, Splits, gathered, parts_of, splits_of
from ebm_app.utils.errors import UserError
from ebm_app.utils.records import open_plain
from ebm_app.utils.tensor_files import as_tensor

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
# Only these decoders may run: the content of a file decides its format, not its name.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
SPLITS = ("train", "validation", "test")
MIN_IMAGES = 10


def read_folder(
    path: str | Path, resolution: int | None = None
) -> tuple[tuple[Images, ...], Splits | None]:
    """Read all images below ``path`` and split them.

    The folders ``train``, ``validation`` and ``test`` are the splits where all three exist.
    Otherwise the sorted images are permuted by ``numpy.random.RandomState(0)``, whose stream is
    the same in every version of numpy; of n images the last n // 10 are the test split, the
    n // 10 before them validation, the rest train. Images are grey if every file is (Pillow's
    modes 1, L, LA), otherwise all of them are RGB. Where all of them lie in folders, one level
    below ``path`` or its splits, these are the classes, in the order of their names.

    Args:
        resolution: side in pixels. The shorter side of each image is resized to it by a triangle
            filter (antialiased, within 0..255), then the centre square is cut out. None keeps the
            images as they are, of one size.

    Returns:
        Train, validation and test values, uint8 (N, C, H, W), C = 1 (grey) or 3 (RGB), and their
        class labels, int64 (N,), or None.
    """
    folder = Path(path).expanduser()
    if not os.path.isdir(folder):  # nor one that cannot be read
        raise UserError(f"there is no folder '{folder}': check the path after 'folder:'")
    files = list_images(folder)
    if len(files) < MIN_IMAGES:
        raise UserError(
            f"the folder '{folder}' holds {len(files)} images, fewer than {MIN_IMAGES}: "
            f"add images ({', '.join(e[1:] for e in EXTENSIONS)}) or check the path"
        )
    sizes, order = _splits(folder, files)

    def read(number: int) -> Tensor:
        return pixels_of(read_image(files[number]), str(files[number]), resolution)

    images = gathered(read, len(files), lambda number: str(files[number]))
    return splits_of(parts_of(images, _labels(folder, files), sizes, order))


def _labels(folder: Path, files: Sequence[Path]) -> Tensor | None:
    """The class (N,) of every file by its folder, if there are classes."""
    parents = [file.relative_to(folder).parts[:-1] for file in files]
    if all(parent and parent[0] in SPLITS for parent in parents):
        parents = [parent[1:] for parent in parents]
    names = sorted(set(parents))
    if len(names) < 2 or any(len(name) != 1 for name in names):
        return None
    return torch.tensor([names.index(parent) for parent in parents])


def list_images(folder: Path) -> list[Path]:
    """Files below ``folder`` with one of ``EXTENSIONS``, sorted by their relative path."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(f"cannot list the folder '{error.filename}': {error.strerror}")

    found = [Path(root, f) for root, _, names in os.walk(folder, onerror=fail) for f in names]
    found = [file for file in found if file.suffix.lower() in EXTENSIONS]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def read_image(path: Path, keep_alpha: bool = False) -> Image.Image:
    """Read one file to mode L (grey) or RGB; one with transparent parts to RGBA, if these may
    stay."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_plain(path) as file, Image.open(file, formats=FORMATS) as opened:
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
    return opaque(image, str(path), keep_alpha)


def opaque(image: Image.Image, path: str, keep_alpha: bool = False) -> Image.Image:
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


def pixels_of(item: Any, name: str, resolution: int | None = None) -> Tensor:
    """The values of one image, uint8 (C, H, W): one of Pillow's, of which the centre is brought to
    ``resolution`` if that is given, or (C, H, W) as uint8 or as floats in [0, 1]."""
    if not isinstance(item, Image.Image):
        values = as_tensor(item, name)
        if values.ndim != 3 or len(values) not in (1, 3):
            raise UserError(f"{name} has shape {tuple(values.shape)}: give (C, H, W), grey or RGB")
        return to_levels(values, NUM_VALUES)
    image = opaque(item, name)
    if resolution is not None:
        image = ImageOps.fit(image, (resolution,) * 2, method=Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def on_levels(image: Image.Image, form: Any) -> Tensor:
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


def _splits(folder: Path, files: Sequence[Path]) -> tuple[list[int], Tensor | None]:
    """Sizes of the three splits and the order of the images, by the folders of these names, or at
    random: where two are there, that would mix test images into the training images."""
    if sum((folder / split).is_dir() for split in SPLITS) < 2:
        held_out = len(files) // 10
        return [len(files) - 2 * held_out, held_out, held_out], None
    tops = [file.relative_to(folder).parts[0] for file in files]
    for file, top in zip(files, tops, strict=True):
        if top not in SPLITS:
            raise UserError(f"the image '{file}' lies outside {'/, '.join(SPLITS)}/: move it")
    for split in set(SPLITS) - set(tops):
        raise UserError(f"'{folder / split}' holds no images: add some, or rename the others")
    order = sorted(range(len(files)), key=lambda index: SPLITS.index(tops[index]))
    return [tops.count(split) for split in SPLITS], torch.tensor(order)
