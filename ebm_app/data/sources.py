"""Images from folders and Hugging Face data sets."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.cache import decode, map_images
from ebm_app.data.folder import digest_files, is_image, list_files, load_folder
from ebm_app.data.pictures import ToPixels, to_pixels
from ebm_app.data.splits import SPLITS, Labelled, split_by_name
from ebm_app.data.tables import BY_TYPE, Columns, Row, load_hub, read_rows
from ebm_app.utils.errors import UserError

#: Names of data sets of files begin with these
FOLDER, HUB = "folder:", "hf:"
#: Version of the cached images. Increase it if reading, splits or labels change
CACHE_VERSION = 1


def read_files(
    name: str, convert: ToPixels, conversion: Any, columns: Columns
) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Read the splits of a folder or a Hugging Face data set. Missing splits are held out from the
    training images by their names.

    Args:
        name: "folder:PATH" or "hf:NAME", see ``load_folder`` and ``load_hub``.
        convert: converts an image to uint8 (C, H, W).
        conversion: identifies ``convert``, as JSON data.
        columns: columns of images and labels.

    Returns:
        The splits by name, and a report of what was read, as JSON data.

    Raises:
        UserError: for a data set that cannot be read, ambiguous splits or columns, an unusable
            image, and too few images.
    """
    kind, path = name.split(":", 1)
    folder = Path(path).expanduser().absolute()
    if folder.is_dir():
        state = digest_files(folder)
    elif kind == "folder":
        raise UserError(f"Folder '{path}' does not exist. Check the path after 'folder:'.")
    else:
        state = [dataset._fingerprint for dataset in load_hub(path).values()]

    def read(cache: Path) -> tuple[np.ndarray, dict[str, Any]]:
        if kind == "folder":
            names = [file for file in list_files(folder) if is_image(file)]
            rows, classes, report = read_rows(load_folder(folder, names), columns, folder)
            check_listed(rows, names)
        else:
            rows, classes, report = read_rows(load_hub(path), columns)
        rows, report["held_out"] = hold_out(rows)
        names = [row.name for row in rows]
        pixels = decode(lambda index: rows[index].read(convert), names, cache)
        about = {"rows": [row[:3] for row in rows], "classes": classes, "report": report}
        return pixels, about

    key = cache_key(kind, state, conversion, columns)
    images, about = map_images(key, read)
    splits, start = {}, 0
    for split in SPLITS:
        own = [row[1:] for row in about["rows"] if row[0] == split]
        names, labels = map(list, zip(*own, strict=True))
        labels = None if None in labels else torch.tensor(labels)
        part = images[start : start + len(own)]
        splits[split] = Labelled(part, labels, names, tuple(about["classes"]))
        start += len(own)
    return splits, about["report"]


def cache_key(*options: Any) -> str:
    """Return the key of cached images that were read with options, JSON data."""
    return hashlib.sha256(json.dumps([CACHE_VERSION, *options]).encode()).hexdigest()[:32]


def read_parquet(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return levels (N, C, H, W) and labels (N,) of a split of Parquet files, which are decoded
    once."""

    def read(cache: Path) -> tuple[np.ndarray, dict[str, Any]]:
        rows, *_ = read_rows({"train": load_hub(str(folder))[split]}, BY_TYPE)
        names, labels = [row.name for row in rows], [row.label for row in rows]
        images = decode(lambda index: rows[index].read(to_pixels), names)
        return images, {"labels": labels}

    folder = folder.absolute()
    images, about = map_images(cache_key("parquet", digest_files(folder), split), read)
    return images, torch.tensor(about["labels"])


def check_listed(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Raise a UserError if the images are not those with the names, as with images in a folder
    "__name", which the package ``datasets`` ignores, or in a zip file, which it reads."""
    if others := sorted({*names} ^ {row.name for row in rows}):
        raise UserError(
            f"The image '{others[0]}' is not read, because of its format or its folder. Rename it "
            "or move it out of the data set."
        )


def hold_out(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Hold out missing splits of the training images by their names. Return the rows in the order
    of their splits, and the missing splits."""
    missing = [split for split in SPLITS if all(row.split != split for row in rows)]
    if missing:
        train = [row for row in rows if row.split == "train"]
        chosen = split_by_name([row.name for row in train], missing)
        held = [train[i]._replace(split=split) for split, own in chosen.items() for i in own]
        rows = [*held, *(row for row in rows if row.split != "train")]
    return sorted(rows, key=lambda row: SPLITS.index(row.split)), missing
