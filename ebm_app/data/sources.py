"""Where images come from, beside files and named data sets: Hugging Face data sets, and what a
user holds in Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ebm_app.data.folder import SPLITS
from ebm_app.data.pictures import to_pixels
from ebm_app.data.stored import Images, Labelled, Splits, collect_splits, load_all, split_images
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.tensors import as_tensor

HUB = "hf:"
COLOURS = (1, 3)
#: of a data set that was written by ``save_to_disk``
SAVED = ("dataset_dict.json", "state.json")


def read_hub(name: str, resolution: int | None = None) -> tuple[tuple[Images, ...], Splits | None]:
    """The splits of a data set of the package ``datasets``: a folder of ``save_to_disk``, of
    parquet files or of images, or a name on the hub.

    Splits that it lacks are taken from its training split, a tenth each, in the order of
    ``numpy.random.RandomState(0)``. The images are its first column of that kind, the class labels
    its first column of class labels.
    """
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk  # seconds to import

    folder = Path(name).expanduser()
    try:
        if any((folder / file).is_file() for file in SAVED):
            found = load_from_disk(str(folder))
        else:
            found = load_dataset(str(folder) if folder.exists() else name)
    except Exception as error:  # of any kind, by what is there
        raise UserError(f"cannot read the data set '{name}': {shorten(error)}") from error
    parts: dict[str, Dataset] = found if isinstance(found, DatasetDict) else {"train": found}
    if "train" not in parts:
        raise UserError(f"the data set '{name}' has no split train: it has {', '.join(parts)}")
    made = {split: read_dataset(parts[split], resolution) for split in SPLITS if split in parts}
    missing = [split for split in SPLITS if split not in made]
    images, labels = made["train"]
    held_out = [len(images) // 10] * len(missing)
    parts = split_images(images, labels, [len(images) - sum(held_out), *held_out])
    made |= zip(["train", *missing], parts, strict=True)
    return collect_splits(made[split] for split in SPLITS)


def read_dataset(dataset: Any, resolution: int | None = None) -> Labelled:
    """The images and labels of a ``datasets.Dataset``."""
    kinds = {name: type(kind).__name__ for name, kind in dataset.features.items()}
    columns = [name for name, kind in kinds.items() if kind == "Image"]
    if not columns:
        raise UserError(f"the data set has no column of images: it has {', '.join(kinds)}")
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]

    def read(number: int) -> Tensor:
        return to_pixels(dataset[number][columns[0]], f"image {number}", resolution)

    labels = torch.tensor(dataset[classes[0]][:]) if classes else None
    return load_all(read, len(dataset), "image {}".format), labels


def as_images(given: Any) -> Labelled:
    """Images (N, C, H, W), and their class labels where they have some, of what ``train`` takes: a
    tensor, an array, a list of Pillow's images, or a data set of torch or of Hugging Face."""
    if hasattr(given, "features") and hasattr(given, "column_names"):
        return read_dataset(given)
    if isinstance(given, Tensor | np.ndarray) or not hasattr(given, "__getitem__"):
        return channels_first(as_tensor(given, "images")), None
    try:
        first = given[0] if len(given) else None
    except (LookupError, TypeError) as error:
        raise UserError(
            f"images: there is none at 0 ({shorten(repr(error))}): give a tensor, an array, a "
            "list or a data set"
        ) from None
    is_pair = isinstance(first, tuple) and len(first) == 2
    if not (isinstance(first, Image.Image) or is_pair or not isinstance(given, Sequence)):
        return channels_first(as_tensor(given, "images")), None

    def read(number: int) -> Tensor:
        item = given[number][0] if is_pair else given[number]
        return to_pixels(item, f"image {number}")

    labels = None
    if is_pair:
        targets = getattr(given, "targets", None)
        targets = [given[i][1] for i in range(len(given))] if targets is None else targets
        labels = torch.as_tensor(targets)
    return load_all(read, len(given), "image {}".format), labels


def channels_first(images: Tensor) -> Tensor:
    """Images (N, C, H, W), of which the channels may be last where they can be nothing else.

    >>> channels_first(torch.zeros(2, 8, 8, 3)).shape
    torch.Size([2, 3, 8, 8])
    """
    if images.ndim != 4 or images.shape[3] not in COLOURS or len(set(images.shape[1:])) == 1:
        return images
    if images.shape[1] in COLOURS:
        raise UserError(
            f"images of shape {tuple(images.shape)} may have their channels first or last: give "
            "(N, C, H, W) with a width of neither 1 nor 3"
        )
    return images.permute(0, 3, 1, 2)
