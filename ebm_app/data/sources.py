"""Images from folders and Hugging Face data sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.data.folder import is_image, list_files, load_folder
from ebm_app.data.pictures import ToPixels, to_pixels
from ebm_app.data.splits import SPLITS, Labelled, split_by_name
from ebm_app.data.tables import BY_TYPE, Columns, Row, load_hub, read_rows
from ebm_app.utils.errors import UserError

#: Names of data sets of files begin with these
FOLDER, HUB = "folder:", "hf:"


def read_files(
    name: str, convert: ToPixels, columns: Columns
) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Read the splits of a folder or a Hugging Face data set. Missing splits are held out from the
    training images by their names.

    Args:
        name: "folder:PATH" or "hf:NAME", see ``load_folder`` and ``load_hub``.
        convert: converts an image to uint8 (C, H, W).
        columns: columns of images and labels.

    Returns:
        The splits by name, and a report of what was read, as JSON data.

    Raises:
        UserError: for a data set that cannot be read, ambiguous splits or columns, an unusable
            image, and too few images.
    """
    kind, path = name.split(":", 1)
    if kind == "folder":
        folder = Path(path).expanduser().absolute()
        if not folder.is_dir():
            raise UserError(f"Folder '{path}' does not exist. Check the path after 'folder:'.")
        names = [file for file in list_files(folder) if is_image(file)]
        rows, classes, report = read_rows(load_folder(folder, names), columns, folder)
        check_listed(rows, names)
    else:
        rows, classes, report = read_rows(load_hub(path), columns)
    rows, report["held_out"] = hold_out(rows)
    images, splits, start = decode(rows, convert), {}, 0
    for split in SPLITS:
        own = [row for row in rows if row.split == split]
        names, labels = [row.name for row in own], [row.label for row in own]
        labels = None if None in labels else torch.tensor(labels)
        splits[split] = Labelled(images[start : start + len(own)], labels, names, classes)
        start += len(own)
    return splits, report


def read_parquet(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return levels (N, C, H, W) and labels (N,) of a split of Parquet files."""
    rows, *_ = read_rows({"train": load_hub(str(folder))[split]}, BY_TYPE)
    return decode(rows, to_pixels), torch.tensor([row.label for row in rows])


def decode(rows: Sequence[Row], convert: ToPixels) -> Tensor:
    """Return the images of rows, uint8 (N, C, H, W). C = 1 if all are grey. Otherwise, grey images
    become RGB.

    Raises:
        UserError: if the images differ in size, or an image cannot be read.
    """
    images = torch.empty(0)
    for index, row in enumerate(tqdm(rows, "decode images", leave=False, delay=2)):
        image = row.read(convert)
        if not index:
            images = torch.empty(len(rows), *image.shape, dtype=torch.uint8)
        elif image.shape[1:] != images.shape[2:]:
            height, width = images.shape[2:]
            raise UserError(
                f"Images differ in size: '{rows[0].name}' is {width}x{height} and '{row.name}' is "
                f"{image.shape[2]}x{image.shape[1]}. Resize them to NxN with --resolution N."
            )
        if len(image) > images.shape[1]:  # the first colour image
            images = images.repeat(1, 3, 1, 1)
        images[index] = image
    return images


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
