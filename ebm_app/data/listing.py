"""What a folder of images holds: its files, their splits and their classes.

Files and folders whose names begin with a dot, and those of ``SYSTEM``, are never data.
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple, NoReturn

from ebm_app.utils.errors import UserError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
#: Folders that operating systems add
SYSTEM = ("__MACOSX", "@eaDir")
#: Split -> names of its folder, in any case
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
#: Names of folders of images, and of folders beside them that hold their labels as images
IMAGES, MASKS = {"images", "image", "imgs"}, {"masks", "mask", "labels", "annotations"}


class Listing(NamedTuple):
    """Image files below a folder, sorted by their relative path.

    Attributes:
        files: paths of the images.
        splits: split of each image, or None if the folder has no splits.
        classes: class of each image, the name of its folder, or None.
        skipped: number of other files by suffix, and of hidden files and folders.
        notes: what a user must know, one sentence each.
    """

    files: list[Path]
    splits: list[str] | None
    classes: list[str] | None
    skipped: dict[str, int]
    notes: list[str]


def list_folder(folder: Path) -> Listing:
    """List the images below a folder.

    If folders with the names of at least two splits hold images, they are the splits. If all
    images lie in the subfolders of the folder or of its splits, these are the classes.

    Raises:
        UserError: for a folder that cannot be listed, several folders of one split, images outside
            of the splits, and images beside folders of masks.
    """
    files, skipped, notes = _walk(folder)
    parents = [file.relative_to(folder).parts[:-1] for file in files]
    _refuse_masks(folder, {name for parent in parents for name in parent})
    tops = [parent[0] if parent else "" for parent in parents]
    splits = _splits(folder, dict(zip(tops, files, strict=True)))
    if splits:
        parents = [parent[1:] for parent in parents]
    classes = ["/".join(parent) for parent in parents]
    depths = {len(parent): file for parent, file in zip(parents, files, strict=True)}
    if len(depths) > 1:
        one, other, *_ = (str(file.relative_to(folder)) for file in depths.values())
        notes.append(
            f"Images lie at several depths, such as '{one}' and '{other}', so their folders are "
            "not classes."
        )
    are_classes = set(depths) == {1} and len(set(classes)) > 1
    own = [splits[top] for top in tops] if splits else None
    return Listing(files, own, classes if are_classes else None, skipped, notes)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is never data."""
    return name.startswith(".") or name in SYSTEM


def _walk(folder: Path) -> tuple[list[Path], dict[str, int], list[str]]:
    """Return the images, the numbers of skipped files, and notes about links to folders."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(f"Cannot list the folder '{error.filename}': {error.strerror}.")

    files, skipped, notes = [], Counter(), []
    for root, folders, names in os.walk(folder, onerror=fail):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        notes += [
            f"The link '{Path(root, name).relative_to(folder)}' to a folder is not followed. Copy "
            "the folder, if its images are data."
            for name in links
        ]
        skipped["hidden"] += sum(map(is_hidden, [*folders, *names]))
        folders[:] = sorted(name for name in folders if not is_hidden(name) and name not in links)
        for path in (Path(root, name) for name in names if not is_hidden(name)):
            suffix = path.suffix.lower()
            if suffix in EXTENSIONS:
                files.append(path)
            else:
                skipped[suffix or "without suffix"] += 1
    files.sort(key=lambda path: path.relative_to(folder).as_posix())
    return files, {kind: num for kind, num in sorted(skipped.items()) if num}, notes


def _refuse_masks(folder: Path, names: set[str]) -> None:
    """Raise a UserError if a folder of images lies beside a folder of masks."""
    images, masks = (
        sorted(name for name in names if name.lower() in kind) for kind in (IMAGES, MASKS)
    )
    if images and masks:
        raise UserError(
            f"'{folder}' holds the folders {images[0]}/ and {masks[0]}/. Move {masks[0]}/ "
            f"elsewhere, or give the folder of the images, such as folder:{folder / images[0]}."
        )


def _splits(folder: Path, tops: dict[str, Path]) -> dict[str, str] | None:
    """Return the split of each folder at the top, or None if there are not two splits.

    Args:
        tops: name of a folder at the top, or "", and one of the images in it.
    """
    names = {
        split: [top for top in tops if top.lower() in known]
        for split, known in SPLIT_NAMES.items()
    }
    if sum(map(bool, names.values())) < 2:
        return None
    for split, own in names.items():
        if len(own) > 1:
            raise UserError(f"'{folder}' has the folders {', '.join(own)} for the split {split}.")
    if not names["train"]:
        raise UserError(f"'{folder}' has splits but no images in train/. Add some.")
    splits = {own[0]: split for split, own in names.items() if own}
    for top in tops.keys() - splits.keys():
        raise UserError(
            f"The image '{tops[top]}' is outside of {'/, '.join(splits)}/. Move it into a split."
        )
    return splits
