"""Data sets read from a folder of image files.

Ignores files and folders in ``SYSTEM`` and those whose names begin with a dot.
"""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ebm_app.data.lazy import WORKERS, key_of, load_all
from ebm_app.data.pictures import ToPixels, read_image
from ebm_app.data.splits import MIN_IMAGES, Labelled, select
from ebm_app.utils.errors import UserError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
#: Folders created by operating systems
SYSTEM = ("__MACOSX", "@eaDir")
#: Lower-case folder name -> split
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
#: Names of folders of images, and of folders of segmentation masks
IMAGES, MASKS = {"images", "image", "imgs"}, {"masks", "mask", "labels", "annotations"}


def read_folder(
    path: str | Path, to_pixels: ToPixels, skip_bad: bool = False, conversion: str | None = None
) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Read all images in a folder.

    Subfolders named after at least two splits define the splits; otherwise all images are in the
    split "train". If all images are in subfolders of the folder or of its splits, these subfolders
    are classes. Images are grey if all files are grey (Pillow's modes 1, L, LA), otherwise RGB.

    Args:
        to_pixels: converts an image to uint8 (C, H, W).
        skip_bad: skip files that are not readable images.
        conversion: identifies ``to_pixels`` in the key of the cached images; None disables the
            cache.

    Returns:
        The splits by name, with file names and class labels, if any, and a report of the files
        read and skipped, as JSON data.

    Raises:
        UserError: for a missing folder, too few images, an unusable image, several folders for one
            split, images outside the splits, and images next to masks.
    """
    folder = Path(path).expanduser()
    if not os.path.isdir(folder):
        raise UserError(f"Folder '{folder}' does not exist. Check the path after 'folder:'.")
    names, skipped, notes = find_images(folder)
    bad = unreadable(folder, names) if skip_bad else set()
    names = [name for name in names if name not in bad]
    if len(names) < MIN_IMAGES:
        raise UserError(
            f"Expected at least {MIN_IMAGES} images in '{folder}', found {len(names)}. Add images "
            f"({', '.join(e[1:] for e in EXTENSIONS)}) or check the path."
        )
    parents = [name.split("/")[:-1] for name in names]
    splits = splits_of(names)
    if splits:
        parents = [parent[1:] for parent in parents]
    depths = {len(parent): name for parent, name in zip(parents, names, strict=True)}

    def read(index: int) -> Tensor:
        file = folder / names[index]
        return to_pixels(read_image(file), str(file))

    key = None if conversion is None else key_of(folder, names, conversion)
    images = load_all(read, len(names), lambda index: str(folder / names[index]), key)
    report = {"files": len(names), "skipped": skipped, "bad": sorted(bad), "notes": notes}
    labels, class_names = None, tuple(sorted({"/".join(parent) for parent in parents}))
    if len(depths) > 1:
        one, other, *_ = depths.values()
        notes.append(
            f"Images are at different depths, such as '{one}' and '{other}', so folders are not "
            "used as classes."
        )
    elif set(depths) == {1} and len(class_names) > 1:
        label_of = {name: label for label, name in enumerate(class_names)}
        labels = torch.tensor([label_of[parent[0]] for parent in parents])
    data = Labelled(images, labels, names, class_names)
    if not splits:
        return {"train": data}, report
    rows: dict[str, list[int]] = {}
    for row, split in enumerate(splits):
        rows.setdefault(split, []).append(row)
    return {split: select(data, torch.tensor(own)) for split, own in rows.items()}, report


def find_images(folder: Path) -> tuple[list[str], dict[str, int], list[str]]:
    """Return the sorted paths of the image files below a folder, relative to it, the number of
    skipped files by suffix, and notes about links to folders."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(f"Cannot list the folder '{error.filename}': {error.strerror}.")

    # strings, because operations on paths take most of the time for many files
    files, skipped, notes, parents = [], Counter(), [], set()
    for root, folders, names in os.walk(folder, onerror=fail):
        parts = Path(root).relative_to(folder).parts
        prefix = "".join(f"{part}/" for part in parts)
        hidden = {name for name in [*folders, *names] if name[0] == "." or name in SYSTEM}
        skipped["hidden"] += len(hidden)
        folders[:] = [name for name in folders if name not in hidden]
        notes += [
            f"The link '{prefix}{name}' to a folder is not followed. Copy the folder to include "
            "its images."
            for name in folders
            if os.path.islink(os.path.join(root, name))
        ]
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if name not in hidden and suffix in EXTENSIONS:
                files.append(prefix + name)
                parents.update(map(str.lower, parts))
            elif name not in hidden:
                skipped[suffix or "without suffix"] += 1
    files.sort()
    if parents & IMAGES and parents & MASKS:
        raise UserError(
            f"'{folder}' has images next to a folder {min(parents & MASKS)}. Move that folder, or "
            "use the path of the folder of images."
        )
    return files, dict(sorted((+skipped).items())), notes


def splits_of(names: list[str]) -> list[str] | None:
    """Return the split of each image, given its path in the folder, or None if there are fewer
    than two splits."""
    tops = {name.split("/")[0]: name for name in names}
    folders: dict[str, list[str]] = {}
    for top in sorted(tops):
        if split := SPLIT_NAMES.get(top.lower()):
            folders.setdefault(split, []).append(top)
    if len(folders) < 2:
        return None
    for split, own in folders.items():
        if len(own) > 1:
            raise UserError(f"Split {split} has several folders: {', '.join(own)}. Keep one.")
    if "train" not in folders:
        raise UserError("The folder has splits, but train/ has no images. Add images.")
    splits = {top: split for split, (top,) in folders.items()}
    for top in tops.keys() - splits.keys():
        raise UserError(
            f"The image '{tops[top]}' is outside {'/, '.join(splits)}/. Move it into a split."
        )
    return [splits[name.split("/")[0]] for name in names]


def unreadable(folder: Path, names: list[str]) -> set[str]:
    """Return the files in a folder that are not readable images."""

    def is_bad(name: str) -> bool:
        try:
            read_image(folder / name)
        except UserError:
            return True
        return False

    with ThreadPoolExecutor(WORKERS) as pool:
        return {name for name, bad in zip(names, pool.map(is_bad, names), strict=True) if bad}
