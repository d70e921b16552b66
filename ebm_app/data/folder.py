"""A user's own folder of image files, as integer values 0..255.

Files are found recursively, sorted by their path below the folder ("/" between the parts, on
every system) and read by Pillow. Orientation tags are applied, colour profiles are not. Files with
another ending, gif among them, are not images here; links to folders are not followed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from ebm_app.data.pictures import read_image, to_pixels
from ebm_app.data.stored import Images, Splits, collect_splits, load_all, split_images
from ebm_app.utils.errors import UserError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
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
        return to_pixels(read_image(files[number]), str(files[number]), resolution)

    images = load_all(read, len(files), lambda number: str(files[number]))
    return collect_splits(split_images(images, _labels(folder, files), sizes, order))


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
