"""Folders of image files.

Ignores folders in ``SYSTEM``, and files and folders whose names begin with a dot.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

from ebm_app.data.splits import MIN_IMAGES, named_splits
from ebm_app.data.tables import LABEL, quiet_loading
from ebm_app.utils.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
#: Folder created by macOS, which is ignored
SYSTEM = ("__MACOSX",)
#: Names of folders of images, and of folders of segmentation masks
IMAGES, MASKS = {"images", "image", "imgs"}, {"masks", "mask", "labels", "annotations"}


def list_files(folder: Path) -> list[str]:
    """Return the sorted paths of the files below a folder, relative to it. Links to folders are
    not followed."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(f"Cannot list the folder '{error.filename}': {error.strerror}.")

    paths = []
    for root, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "." and name not in SYSTEM]
        prefix = "" if Path(root) == folder else f"{os.path.relpath(root, folder)}/"
        paths += [prefix + name for name in files if name[0] != "."]
    return sorted(paths)


def is_image(name: str) -> bool:
    """Whether a file has the suffix of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def load_folder(folder: Path, names: Sequence[str]) -> dict[str, Dataset]:
    """Load a folder of image files by the ``imagefolder`` builder of the package ``datasets``.

    Subfolders named after at least two splits are the splits; otherwise all images are in the
    split "train". If all images are at the same depth in at least two subfolders, the names of
    these subfolders are the column "label". A file metadata.csv adds its columns instead.

    Args:
        names: paths of the images in the folder.

    Raises:
        UserError: for too few images, unreadable names, images next to masks, several folders for
            one split, and images outside the splits.
    """
    from datasets import ClassLabel, load_dataset  # takes seconds to import

    check_names(folder, names)
    tops = split_folders(names)
    patterns = {top: f"{glob.escape(str(folder / top))}/**" for top in tops}
    patterns = patterns or {"train": f"{glob.escape(str(folder))}/**"}
    with TemporaryDirectory() as cache, quiet_loading(str(folder)):
        loaded = load_dataset("imagefolder", data_files=patterns, cache_dir=cache)
    feature = loaded["train" if not tops else tops[0]].features.get(LABEL)
    if isinstance(feature, ClassLabel) and {*feature.names} <= {*tops}:
        loaded = loaded.remove_columns(LABEL)  # the folders of the splits
    return dict(loaded)


def check_names(folder: Path, names: Sequence[str]) -> None:
    """Refuse too few images, names that ``datasets`` cannot read, and images next to masks."""
    if len(names) < MIN_IMAGES:
        raise UserError(
            f"Expected at least {MIN_IMAGES} images in '{folder}', found {len(names)}. Add images "
            f"({', '.join(suffix[1:] for suffix in EXTENSIONS)}) or check the path."
        )
    for name in names:
        if "@eaDir" in name.split("/"):
            raise UserError(f"'{folder}' has folders of thumbnails named @eaDir. Delete them.")
        if "::" in name or name.encode(errors="ignore").decode() != name:
            raise UserError(f"The name {name!a} is not UTF-8 or has '::'. Rename the image.")
    parents = {part.lower() for name in names for part in name.split("/")[:-1]}
    if parents & IMAGES and parents & MASKS:
        raise UserError(
            f"'{folder}' has images next to a folder {min(parents & MASKS)}. Move that folder, or "
            "use the path of the folder of images."
        )


def split_folders(names: Sequence[str]) -> list[str]:
    """Return the subfolders that are splits, or none if there are fewer than two."""
    tops = {name.split("/")[0]: name for name in names}
    splits = named_splits(tops)
    if len(splits) < 2:
        return []
    if "train" not in splits:
        raise UserError("The folder has splits, but train/ has no images. Add images.")
    for top in tops.keys() - splits.values():
        raise UserError(
            f"The image '{tops[top]}' is outside {'/, '.join(splits.values())}/. Move it into a "
            "split."
        )
    return list(splits.values())
