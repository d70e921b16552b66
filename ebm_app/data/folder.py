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

from ebm_app.data.lazy import load_all
from ebm_app.data.pictures import ToPixels, read_image
from ebm_app.data.splits import MIN_IMAGES, SPLITS, Labelled, select, split_by_content
from ebm_app.utils.errors import UserError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


def read_folder(path: str | Path, to_pixels: ToPixels) -> dict[str, Labelled]:
    """Read all images in a folder and split them.

    If the subfolders ``train``, ``validation`` and ``test`` exist, they are the splits. Otherwise
    ``split_by_content`` holds out about a tenth for each of test and validation. Images are grey
    if all files are (Pillow's modes 1, L, LA), else RGB. If all files lie in subfolders of the
    folder or of its splits, these are the classes, in alphabetical order.

    Args:
        to_pixels: converts an image to uint8 (C, H, W).

    Returns:
        The splits by name, with their class labels, if any, and the names of their files.

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
    has_splits = _has_splits(folder, files)

    def read(index: int) -> Tensor:
        return to_pixels(read_image(files[index]), str(files[index]))

    images = load_all(read, len(files), lambda index: str(files[index]))
    names = [file.relative_to(folder).as_posix() for file in files]
    part = Labelled(images, _labels(folder, files), names)
    if not has_splits:
        return split_by_content(part)
    tops = [name.partition("/")[0] for name in names]
    rows = {split: [row for row, top in enumerate(tops) if top == split] for split in SPLITS}
    return {split: select(part, torch.tensor(rows[split])) for split in SPLITS}


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


def _has_splits(folder: Path, files: Sequence[Path]) -> bool:
    """Whether the files are in the three split folders.

    Two of the three are refused, because a split by content would train on test images.
    """
    if sum((folder / split).is_dir() for split in SPLITS) < 2:
        return False
    tops = {file.relative_to(folder).parts[0]: file for file in files}
    for top in tops.keys() - set(SPLITS):
        raise UserError(
            f"The image '{tops[top]}' is outside of {'/, '.join(SPLITS)}/. Move it into a split."
        )
    for split in set(SPLITS) - tops.keys():
        raise UserError(
            f"'{folder / split}' holds no images. Add some, or rename the other split folders."
        )
    return True
