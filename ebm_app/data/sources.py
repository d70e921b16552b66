"""Images from Hugging Face data sets and Python objects."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ebm_app.data.lazy import load_all
from ebm_app.data.pictures import ToPixels, to_pixels
from ebm_app.data.splits import SPLITS, Labelled
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from datasets import Dataset

HUB = "hf:"
COLOURS = (1, 3)
#: Files written by ``save_to_disk``
SAVED = ("dataset_dict.json", "state.json")


def read_hub(name: str, to_pixels: ToPixels) -> dict[str, Labelled]:
    """Read the splits of a Hugging Face data set; only "train" is required. Images and labels are
    the first columns of these types.

    Args:
        name: name on the hub, or a folder of ``save_to_disk``, parquet files or images.
        to_pixels: converts an image to uint8 (C, H, W).

    Raises:
        UserError: for an unreadable data set, or one without images or a training split.
    """
    from datasets import DatasetDict, load_dataset, load_from_disk  # takes seconds to import

    folder = Path(name).expanduser()
    try:
        if any((folder / file).is_file() for file in SAVED):
            loaded = load_from_disk(str(folder))
        else:
            loaded = load_dataset(str(folder) if folder.exists() else name)
    except Exception as error:  # the package raises many exception types
        raise UserError(f"Cannot read the data set '{name}': {shorten(error)}.") from error
    named = loaded if isinstance(loaded, DatasetDict) else {"train": loaded}
    if "train" not in named:
        raise UserError(f"The data set '{name}' has no split train, only {', '.join(named)}.")
    return {split: read_dataset(named[split], to_pixels) for split in SPLITS if split in named}


def read_dataset(dataset: "Dataset", to_pixels: ToPixels = to_pixels) -> Labelled:
    """Return the images of a ``datasets.Dataset``, with class labels if it has any."""
    types = {name: type(feature).__name__ for name, feature in dataset.features.items()}
    columns = [name for name, kind in types.items() if kind == "Image"]
    if not columns:
        raise UserError(f"The data set has no image column, only {', '.join(types)}.")
    classes = [name for name, kind in types.items() if kind == "ClassLabel"]

    def read(index: int) -> Tensor:
        return to_pixels(dataset[index][columns[0]], f"image {index}")

    labels, class_names = None, ()
    if classes:
        labels = torch.tensor(dataset[classes[0]][:])
        class_names = tuple(dataset.features[classes[0]].names)
    images = load_all(read, len(dataset), "image {}".format)
    names = [f"image {index}" for index in range(len(dataset))]
    return Labelled(images, labels, names, class_names)


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

    loaded = load_all(read, len(images), "image {}".format)
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
