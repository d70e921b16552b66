"""Images from folders, Hugging Face data sets and Python objects."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ebm_app.data.cache import Allocate, decode, map_images
from ebm_app.data.folder import digest_files, load_folder
from ebm_app.data.pictures import ToPixels, to_pixels
from ebm_app.data.splits import (
    HELD_OUT,
    MIN_IMAGES,
    SPLITS,
    Labelled,
    named_splits,
    split_by_name,
)
from ebm_app.data.tables import Columns, Table, load_errors, read_dataset, read_labels, reader
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.tensors import as_tensor

#: Names of data sets of files begin with these
FOLDER, HUB = "folder:", "hf:"
COLOURS = (1, 3)
#: Files written by ``save_to_disk``
SAVED = ("dataset_dict.json", "state.json")
#: Splits by name, and a report of what they have, as JSON data
Tables = tuple[dict[str, Table], dict[str, Any]]


def read_files(
    name: str,
    convert: ToPixels,
    conversion: Sequence[Any],
    columns: Columns,
    skip_bad: bool,
) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Read the splits of a folder or a Hugging Face data set. Missing splits are held out from the
    training images by their names.

    Args:
        name: "folder:PATH", or "hf:NAME" with a name on the hub or a folder of ``save_to_disk``
            or parquet files.
        convert: converts an image to uint8 (C, H, W).
        conversion: identifies ``convert``, as JSON data.
        columns: columns of images and labels.
        skip_bad: skip files that are not readable images.

    Returns:
        The splits by name, and a report of what was read and skipped, as JSON data.

    Raises:
        UserError: for a data set that cannot be read or has no training images, or of which the
            splits or columns are ambiguous, for an unusable image, and too few images.
    """
    kind, path = name.split(":", 1)
    folder = Path(path).expanduser().absolute()
    if kind == "folder" and not folder.is_dir():
        raise UserError(f"Folder '{path}' does not exist. Check the path after 'folder:'.")
    if folder.is_dir():
        state = digest_files(folder)
    else:  # a name on the hub, which is downloaded once
        tables, report = load_hub(path, columns)
        state = [table.dataset._fingerprint for table in tables.values()]

    def read(allocate: Allocate) -> tuple[np.ndarray, dict[str, Any]]:
        if kind == "folder":
            loaded = load_folder(folder, columns, skip_bad)
        else:
            loaded = load_hub(path, columns) if folder.is_dir() else (tables, report)
        return read_tables(*loaded, convert, skip_bad, allocate)

    options = [kind, state, conversion, columns.image, columns.label, skip_bad]
    key = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:32]
    images, about = map_images(key, read)
    splits, start = {}, 0
    for split, names in about["names"].items():
        rows = slice(start, start := start + len(names))
        labels = None if about["labels"] is None else torch.tensor(about["labels"][rows])
        splits[split] = Labelled(images[rows], labels, names, tuple(about["class_names"]))
    return splits, about["report"]


def read_tables(
    tables: dict[str, Table],
    report: dict[str, Any],
    convert: ToPixels,
    skip_bad: bool,
    allocate: Allocate,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Decode the images of all splits into one array; return it, and a description of its rows as
    JSON data. Missing splits are held out."""
    if missing := sorted(HELD_OUT.keys() - tables.keys()):
        rows = split_by_name(tables["train"].names, missing)
        tables = tables | {split: tables["train"].select(own) for split, own in rows.items()}
    parts = [tables[split] for split in SPLITS]
    names = [(split, name) for split in SPLITS for name in tables[split].names]
    pixels, kept = decode(reader(parts, convert), [name for _, name in names], skip_bad, allocate)
    labels, class_names = read_labels(parts)
    used = {split: [] for split in SPLITS}
    for split, name in (names[row] for row in kept):
        used[split].append(name)
    if len(kept) < MIN_IMAGES:
        raise UserError(f"Expected at least {MIN_IMAGES} images, found {len(kept)}. Add images.")
    is_bad = set(range(len(names))).difference(kept)
    report |= {
        "bad": sorted([*report["bad"], *(names[row][1] for row in is_bad)]),
        "held_out": missing,
        "columns": {"image": parts[0].columns.image, "label": parts[0].columns.label},
    }
    return pixels, {
        "names": used,
        "labels": None if labels is None else torch.cat(labels)[kept].tolist(),
        "class_names": class_names,
        "report": report,
    }


def load_hub(name: str, columns: Columns) -> Tables:
    """Load a Hugging Face data set; only the split "train" is required.

    Args:
        name: name on the hub, or a folder of ``save_to_disk`` or parquet files.

    Raises:
        UserError: for an unreadable data set, one without a training split, or with two names of
            one split.
    """
    from datasets import DatasetDict, load_dataset, load_from_disk  # takes seconds to import

    folder = Path(name).expanduser()
    with load_errors(name):
        if any((folder / file).is_file() for file in SAVED):
            loaded = load_from_disk(str(folder))
        else:
            loaded = load_dataset(str(folder) if folder.exists() else name)
    named = loaded if isinstance(loaded, DatasetDict) else {"train": loaded}
    splits = named_splits(named)
    if "train" not in splits:
        raise UserError(f"The data set '{name}' has no split train, only {', '.join(named)}.")
    columns = columns.choose(named[splits["train"]].features)
    tables = {split: Table.of(named[own], columns) for split, own in splits.items()}
    unused = sorted(named.keys() - splits.values())
    notes = [f"Splits {', '.join(unused)} are not used."] if unused else []
    report = {"skipped": {}, "bad": [], "source_splits": splits, "notes": notes}
    return tables, report


def as_images(images: Any) -> Labelled:
    """Convert images as accepted by ``train`` to (N, C, H, W), with class labels, if any.

    Args:
        images: a tensor, an array, a list of Pillow images, a torch data set of images or (image,
            label) pairs, or a Hugging Face data set.
    """
    hub = sys.modules.get("datasets")  # imported if the images are a Hugging Face data set
    if hub is not None and isinstance(images, hub.Dataset):
        return read_dataset(images)
    if isinstance(images, Tensor | np.ndarray):
        return Labelled(channels_first(as_tensor(images, "images")))
    try:
        first = images[0] if len(images) else None
    except (LookupError, TypeError) as error:
        raise UserError(
            "images: expected a tensor, an array, a list or a data set, got "
            f"{shorten(repr(error))} at index 0."
        ) from None
    is_pair = isinstance(first, tuple) and len(first) == 2
    if not (isinstance(first, Image.Image) or is_pair or not isinstance(images, Sequence)):
        return Labelled(channels_first(as_tensor(images, "images")))
    labels = [None] * len(images)

    def read(index: int) -> Tensor:
        item = images[index]
        if is_pair:
            item, labels[index] = item
        return to_pixels(item, f"image {index}")

    pixels, _ = decode(read, [f"image {index}" for index in range(len(images))])
    loaded = torch.from_numpy(np.ascontiguousarray(pixels))
    return Labelled(loaded, torch.as_tensor(labels) if is_pair else None)


def channels_first(images: Tensor) -> Tensor:
    """Return images as (N, C, H, W); permute channels-last images if unambiguous.

    >>> channels_first(torch.zeros(2, 8, 8, 3)).shape
    torch.Size([2, 3, 8, 8])
    """
    if images.ndim != 4 or images.shape[3] not in COLOURS or len(set(images.shape[1:])) == 1:
        return images
    if images.shape[1] in COLOURS:
        raise UserError(
            f"Images of shape {tuple(images.shape)} may have channels first or last. Pass "
            "(N, C, H, W) with a width other than 1 and 3."
        )
    return images.permute(0, 3, 1, 2)
