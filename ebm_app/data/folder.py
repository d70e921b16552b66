"""Data sets from a folder of image files.

Files are found recursively and sorted by their relative path. Files with other endings, such as
gif, are ignored, and links to folders are not followed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from ebm_app.data.lazy import Images, Splits, collect_splits, load_all, split_images
from ebm_app.data.pictures import read_image, to_pixels
from ebm_app.utils.errors import UserError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
SPLITS = ("train", "validation", "test")
MIN_IMAGES = 10


def read_folder(
    path: str | Path, resolution: int | None = None
) -> tuple[tuple[Images, ...], Splits | None]:
    """Read all images in a folder and split them.

    If the subfolders ``train``, ``validation`` and ``test`` exist, they are the splits. Otherwise
    the images are permuted by ``numpy.random.RandomState(0)``: a tenth is held out for the test
    split, a tenth for validation. Images are grey if all files are (Pillow's modes 1, L, LA), else
    RGB. If all files lie in subfolders of the folder or of its splits, these are the classes, in
    alphabetical order.

    Args:
        resolution: side in pixels. The shorter side is resized to it by an antialiased triangle
            filter, then the centre square is cropped. None keeps the images, of equal size.

    Returns:
        Train, validation and test images, uint8 (N, C, H, W) with 256 levels, and their class
        labels, int64 (N,) each, or None.

    Raises:
        UserError: for a missing folder, too few images, or an image that cannot be used.
    """
    folder = Path(path).expanduser()
    if not os.path.isdir(folder):
        raise UserError(f"There is no folder '{folder}'. Check the path after 'folder:'.")
    files = list_images(folder)
    if len(files) < MIN_IMAGES:
        raise UserError(
            f"Expected at least {MIN_IMAGES} images in '{folder}', found {len(files)}. Add images "
            f"({', '.join(e[1:] for e in EXTENSIONS)}) or check the path."
        )
    sizes, order = _splits(folder, files)

    def read(index: int) -> Tensor:
        return to_pixels(read_image(files[index]), str(files[index]), resolution)

    images = load_all(read, len(files), lambda index: str(files[index]))
    return collect_splits(split_images(images, _labels(folder, files), sizes, order))


def list_images(folder: Path) -> list[Path]:
    """List the files below a folder with one of ``EXTENSIONS``, sorted by relative path."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(f"Cannot list the folder '{error.filename}': {error.strerror}.")

    paths = [Path(root, f) for root, _, names in os.walk(folder, onerror=fail) for f in names]
    images = [path for path in paths if path.suffix.lower() in EXTENSIONS]
    return sorted(images, key=lambda path: path.relative_to(folder).as_posix())


def _labels(folder: Path, files: Sequence[Path]) -> Tensor | None:
    """Return the classes (N,) of the files by their folders, if there are at least two."""
    parents = [file.relative_to(folder).parts[:-1] for file in files]
    if all(parent and parent[0] in SPLITS for parent in parents):
        parents = [parent[1:] for parent in parents]
    names = sorted(set(parents))
    if len(names) < 2 or any(len(name) != 1 for name in names):
        return None
    return torch.tensor([names.index(parent) for parent in parents])


def _splits(folder: Path, files: Sequence[Path]) -> tuple[list[int], Tensor | None]:
    """Return the sizes of the splits, and the order of the images or None for a random one.

    Two of the three split folders are an error: a random split would train on test images.
    """
    if sum((folder / split).is_dir() for split in SPLITS) < 2:
        held_out = len(files) // 10
        return [len(files) - 2 * held_out, held_out, held_out], None
    tops = [file.relative_to(folder).parts[0] for file in files]
    for file, top in zip(files, tops, strict=True):
        if top not in SPLITS:
            raise UserError(
                f"The image '{file}' is outside of {'/, '.join(SPLITS)}/. Move it into a split."
            )
    for split in set(SPLITS) - set(tops):
        raise UserError(
            f"'{folder / split}' holds no images. Add some, or rename the other split folders."
        )
    order = sorted(range(len(files)), key=lambda index: SPLITS.index(tops[index]))
    return [tops.count(split) for split in SPLITS], torch.tensor(order)
