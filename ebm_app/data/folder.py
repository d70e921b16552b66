"""Folders of image files.

Ignores files and folders in ``SYSTEM`` and those whose names begin with a dot.
"""

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from ebm_app.data.splits import MIN_IMAGES, named_splits
from ebm_app.data.tables import LABEL, Columns, Table, load_errors
from ebm_app.utils.errors import UserError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
#: Folders created by operating systems
SYSTEM = ("__MACOSX", "@eaDir")
#: Names of folders of images, and of folders of segmentation masks
IMAGES, MASKS = {"images", "image", "imgs"}, {"masks", "mask", "labels", "annotations"}


def find_images(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted paths of the image files, and of other files, below a folder, relative to
    it. Links to folders are other files, with a final "/"."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(f"Cannot list the folder '{error.filename}': {error.strerror}.")

    images, others = [], []
    for root, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "." and name not in SYSTEM]
        prefix = "" if Path(root) == folder else f"{os.path.relpath(root, folder)}/"
        links = (name for name in folders if os.path.islink(os.path.join(root, name)))
        others += [f"{prefix}{name}/" for name in links]
        for name in files:
            if name[0] != ".":
                is_image = os.path.splitext(name)[1].lower() in EXTENSIONS
                (images if is_image else others).append(prefix + name)
    return sorted(images), sorted(others)


def count_suffixes(names: Sequence[str]) -> dict[str, int]:
    """Return the number of files with each suffix."""
    counts = Counter()
    for name in names:
        suffix = os.path.splitext(name)[1].lower() or "without suffix"
        counts["links to folders" if name.endswith("/") else suffix] += 1
    return dict(sorted(counts.items()))


def digest_files(folder: Path) -> str:
    """Return a digest of the paths, sizes and modification times of the files in a folder."""
    digest = hashlib.sha256(os.fsencode(folder))
    for names in find_images(folder):
        for name in names:
            file = os.path.join(folder, name.rstrip("/"))
            status = os.stat(file) if os.path.exists(file) else os.lstat(file)
            digest.update(os.fsencode(f"{name} {status.st_size} {status.st_mtime_ns}\n"))
    return digest.hexdigest()


def load_folder(
    folder: Path, columns: Columns, skip_bad: bool = False
) -> tuple[dict[str, Table], dict[str, Any]]:
    """Load a folder of image files by the ``imagefolder`` builder of the package ``datasets``.

    Subfolders named after at least two splits define the splits; otherwise all images are in the
    split "train". If all images are in subfolders of the folder or of its splits, the names of
    these subfolders are the column "label". A file metadata.csv adds its columns instead.

    Args:
        skip_bad: skip images that the package ignores, such as those in a folder "__name".

    Returns:
        The splits by name, and a report of the files used and skipped, as JSON data.

    Raises:
        UserError: for too few images, images that the package ignores, several folders for one
            split, images outside the splits, and images next to masks.
    """
    names, others = find_images(folder)
    check_names(folder, names)
    tops = split_folders(names)
    classes, notes = find_classes(names, depth=1 if tops else 0)
    splits = {
        split: _load(folder, top, columns, classes)
        for split, top in (tops or {"train": ""}).items()
    }
    known, listed = set(names), {name for table in splits.values() for name in table.names}
    if (ignored := known - listed) and not skip_bad:
        raise UserError(
            f"The package datasets does not list '{folder / min(ignored)}'. Rename or remove the "
            "file, or add it to metadata.csv. Use --skip_bad to skip it."
        )
    for split, table in splits.items():
        rows = [row for row, name in enumerate(table.names) if name in known]
        splits[split] = table if len(rows) == len(table.names) else table.select(rows)
    report = {"files": len(names), "skipped": count_suffixes(others), "bad": sorted(ignored)}
    return splits, report | {"source_splits": tops or {"train": "all files"}, "notes": notes}


def check_names(folder: Path, names: Sequence[str]) -> None:
    """Refuse too few images, and images next to masks."""
    if len(names) < MIN_IMAGES:
        raise UserError(
            f"Expected at least {MIN_IMAGES} images in '{folder}', found {len(names)}. Add images "
            f"({', '.join(suffix[1:] for suffix in EXTENSIONS)}) or check the path."
        )
    parents = {part.lower() for name in names for part in name.split("/")[:-1]}
    if parents & IMAGES and parents & MASKS:
        raise UserError(
            f"'{folder}' has images next to a folder {min(parents & MASKS)}. Move that folder, or "
            "use the path of the folder of images."
        )


def split_folders(names: Sequence[str]) -> dict[str, str]:
    """Return split -> subfolder, or nothing for fewer than two splits."""
    tops = {name.split("/")[0]: name for name in names}
    splits = named_splits(tops)
    if len(splits) < 2:
        return {}
    if "train" not in splits:
        raise UserError("The folder has splits, but train/ has no images. Add images.")
    for top in tops.keys() - splits.values():
        raise UserError(
            f"The image '{tops[top]}' is outside {'/, '.join(splits.values())}/. Move it into a "
            "split."
        )
    return splits


def find_classes(names: Sequence[str], depth: int) -> tuple[set[str], list[str]]:
    """Return the subfolders at a depth that are classes, if all images are directly in at least
    two such folders, and notes about other folders."""
    parents = {tuple(name.split("/")[depth:-1]) for name in names}
    depths = {len(parent) for parent in parents}
    if depths == {1} and len(parents) > 1:
        return {parent[0] for parent in parents}, []
    if depths in ({0}, {1}):
        return set(), []
    return set(), [
        "Images are at different depths, or in nested folders, so folders are not classes."
    ]


@contextmanager
def hidden_progress_bars() -> Iterator[None]:
    """Hide the progress bars of the package ``datasets``, which call local files downloads."""
    from datasets import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    are_shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if are_shown:
            enable_progress_bars()


def _load(folder: Path, top: str, columns: Columns, classes: Collection[str]) -> Table:
    """Load the images in a subfolder. Their names are their paths in the folder."""
    from datasets import config, load_dataset  # takes seconds to import

    config.HF_UPDATE_DOWNLOAD_COUNTS = False  # local files need no request
    pattern = f"{glob.escape(str(folder / top))}/**"
    with TemporaryDirectory() as cache, load_errors(str(folder)), hidden_progress_bars():
        dataset = load_dataset(
            "imagefolder", data_files=pattern, split="train", drop_labels=True, cache_dir=cache
        )
    table = Table.of(dataset, Columns(columns.image))
    paths = [file["path"] for file in table.files()[table.columns.image][:]]
    if classes and len(dataset.features) == 1:
        dataset = dataset.add_column(LABEL, [Path(path).parent.name for path in paths])
    names = [os.path.relpath(path, folder) for path in paths]
    return Table(dataset, names, columns.choose(dataset.features))
