"""Data sets from a folder of image files, listed by ``ebm_app.data.listing``."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebm_app.data.decoded import key_of
from ebm_app.data.lazy import WORKERS, load_all
from ebm_app.data.listing import EXTENSIONS, list_folder
from ebm_app.data.pictures import ToPixels, read_image
from ebm_app.data.splits import HELD_OUT, MIN_IMAGES, Labelled, select, split_by_content
from ebm_app.utils.errors import UserError


def read_folder(
    path: str | Path, to_pixels: ToPixels, skip_bad: bool = False, conversion: str | None = None
) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Read all images in a folder and split them.

    Splits that the folder lacks are held out of the training images by ``split_by_content``, about
    a tenth each. Images are grey if all files are (Pillow's modes 1, L, LA), else RGB.

    Args:
        to_pixels: converts an image to uint8 (C, H, W).
        skip_bad: leave out files that cannot be read as images.
        conversion: identifies ``to_pixels`` in the key of a decoded copy; None for no copy.

    Returns:
        The splits by name, with their class labels, if any, and the names of their files; and a
        report of what was read and skipped, as JSON data.

    Raises:
        UserError: for a missing folder, too few images, or an image that cannot be used.
    """
    folder = Path(path).expanduser()
    if not os.path.isdir(folder):
        raise UserError(f"There is no folder '{folder}'. Check the path after 'folder:'.")
    listing = list_folder(folder)
    bad = unreadable(listing.files) if skip_bad else set()
    keep = [index for index in range(len(listing.files)) if index not in bad]
    files = [listing.files[index] for index in keep]
    if len(files) < MIN_IMAGES:
        raise UserError(
            f"Expected at least {MIN_IMAGES} images in '{folder}', found {len(files)}. Add images "
            f"({', '.join(e[1:] for e in EXTENSIONS)}) or check the path."
        )

    def read(index: int) -> Tensor:
        return to_pixels(read_image(files[index]), str(files[index]))

    key = None if conversion is None else key_of(files, conversion)
    images = load_all(read, len(files), lambda index: str(files[index]), key)
    names = [file.relative_to(folder).as_posix() for file in files]
    report: dict[str, Any] = {
        "files": len(files),
        "skipped": listing.skipped,
        "bad": [str(listing.files[index].relative_to(folder)) for index in sorted(bad)],
        "notes": listing.notes,
    }
    labels = None
    if listing.classes:
        classes = [listing.classes[index] for index in keep]
        report["classes"] = dict(sorted(Counter(classes).items()))
        number = {name: label for label, name in enumerate(report["classes"])}
        labels = torch.tensor([number[name] for name in classes])
    part = Labelled(images, labels, names)
    if not listing.splits:
        return split_by_content(part), report
    rows: dict[str, list[int]] = {}
    for row, index in enumerate(keep):
        rows.setdefault(listing.splits[index], []).append(row)
    splits = {split: select(part, torch.tensor(own)) for split, own in rows.items()}
    if missing := HELD_OUT.keys() - splits.keys():
        splits |= split_by_content(splits["train"], missing)
    return splits, report


def unreadable(files: list[Path]) -> set[int]:
    """Return the indices of files that cannot be read as images."""

    def is_bad(file: Path) -> bool:
        try:
            read_image(file)
        except UserError:
            return True
        return False

    with ThreadPoolExecutor(WORKERS) as pool:
        return {index for index, bad in enumerate(pool.map(is_bad, files)) if bad}
