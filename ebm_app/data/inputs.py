"""Images from Python objects: their layout, labels and grey levels."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from ebm_app.data.cache import decode
from ebm_app.data.labels import sort_classes
from ebm_app.data.levels import NUM_VALUES, to_levels
from ebm_app.data.pictures import to_exact_levels
from ebm_app.data.splits import Labelled
from ebm_app.data.tables import BY_TYPE, Columns, read_rows
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import as_tensor

if TYPE_CHECKING:
    from datasets import Dataset

#: Numbers of channels of images without alpha; number of channels with alpha -> without
COLOURS, WITH_ALPHA = (1, 3), {2: 1, 4: 3}
#: Image, or path of an image file
Picture = Image.Image | str | os.PathLike


@runtime_checkable
class ArrayLike(Protocol):
    """Array of numpy, torch or pandas."""

    def __array__(self) -> np.ndarray: ...


@runtime_checkable
class Classes(Protocol):
    """Data set of torchvision whose labels are indices of ``classes``."""

    classes: Sequence[str]


def as_images(
    images: Any,
    num_levels: int = NUM_VALUES,
    image_shape: tuple[int, ...] | None = None,
    columns: Columns = BY_TYPE,
) -> Labelled:
    """Convert images to levels, uint8 (N, C, H, W), with class labels, if any.

    Args:
        images: a tensor, an array or nested lists of display values in [0, 1] or uint8 levels, see
            ``channels_first`` for their layout; a list of Pillow images or of paths, whose pixels
            are the 8-bit values of levels; a torch data set of such images or of (image, label)
            pairs; or a Hugging Face data set.
        num_levels: number L of grey levels.
        image_shape: (C, H, W) of a model. None for images of any shape.
        columns: columns of a Hugging Face data set.

    Raises:
        UserError: for an empty input, another shape, an ambiguous layout, and values that are not
            grey levels.
    """
    if is_array(images):
        tensor = channels_first(as_tensor(images, "images"), image_shape)
        check_shape(tensor, image_shape)
        return Labelled(to_levels(tensor, num_levels))
    if is_hub_dataset(images):
        labelled = read_dataset(images, columns, num_levels)
    else:
        labelled = read_items(images, num_levels, image_shape)
    check_shape(labelled.images, image_shape)
    return labelled


def is_hub_dataset(images: Any) -> bool:
    """Whether images are a Hugging Face data set."""
    hub = sys.modules.get("datasets")  # imported if they are
    return hub is not None and isinstance(images, hub.Dataset)


def is_array(images: Any) -> bool:
    """Whether images are one array, or nested lists that ``as_tensor`` converts to one."""
    if isinstance(images, list | tuple):
        first = images[0] if images else ()
        is_pair = isinstance(first, tuple) and len(first) == 2
        return not (isinstance(first, Picture) or is_pair)
    return isinstance(images, ArrayLike) and not isinstance(images, Picture)


def read_items(images: Any, num_levels: int, image_shape: tuple[int, ...] | None) -> Labelled:
    """Read a list or torch data set of Pillow images, paths or arrays, or of pairs of one of them
    and a label."""
    try:
        if isinstance(images, Picture):
            raise TypeError("one image")
        first = images[0] if len(images) else None
    except (LookupError, TypeError, NotImplementedError) as error:
        raise UserError(
            f"Images of type {type(images).__name__} are not supported. Pass an array or tensor, "
            "a list of Pillow images or paths, or one data set with an item 0."
        ) from error
    is_pair = isinstance(first, tuple | list) and len(first) == 2
    labels = [None] * len(images)

    def read(index: int) -> Tensor:
        item, name = images[index], f"image {index}"
        if is_pair:
            item, labels[index] = item
        elif isinstance(item, tuple) and len(item) == 1:  # an item of a TensorDataset
            (item,) = item
        if isinstance(item, Picture):
            if not isinstance(item, Image.Image):
                item, name = Path(item).expanduser(), os.fspath(item)
            return to_exact_levels(item, name, num_levels)
        (image,) = channels_first(as_tensor(item, name).unsqueeze(0), image_shape)
        if len(image) not in COLOURS:
            raise UserError(
                f"{name} has {len(image)} channels, but data sets are read as grey or RGB images. "
                "Pass one tensor of all images."
            )
        return to_levels(image, num_levels).cpu()

    loaded = decode_in_memory(read, [f"image {index}" for index in range(len(images))])
    if not is_pair:
        return Labelled(loaded)
    values, names = number_classes(as_tensor(labels, "labels"), class_names_of(images))
    return Labelled(loaded, values, class_names=names)


def class_names_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of the classes of a torchvision data set or a subset of it, if any."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = tuple(dataset.classes) if isinstance(dataset, Classes) else ()
    return names if all(isinstance(name, str) for name in names) else ()


def number_classes(labels: Tensor, names: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels and names of classes, with names of integers sorted as numbers. There are
    no names if the labels (N,) are not their indices.

    >>> number_classes(torch.tensor([0, 1, 2]), ("1", "10", "2"))
    (tensor([0, 2, 1]), ('1', '2', '10'))
    """
    known = {*range(len(names))}
    is_integer = torch.can_cast(labels.dtype, torch.long)
    if not is_integer or not known.issuperset(labels.flatten().tolist()):
        return labels, ()
    ordered = sort_classes(names)
    return torch.tensor([ordered.index(name) for name in names])[labels.long()], ordered


def read_dataset(dataset: "Dataset", columns: Columns, num_levels: int) -> Labelled:
    """Return the images of a ``datasets.Dataset`` in memory, with class labels if it has any."""
    if dataset.format["type"] == "custom":
        raise UserError(
            "The data set has a transform, which is not applied. Remove it with reset_format(), "
            "or pass a list of the transformed images."
        )
    rows, classes, _ = read_rows({"train": dataset}, columns)
    names, labels = [row.name for row in rows], [row.label for row in rows]
    convert = partial(to_exact_levels, num_levels=num_levels)
    images = decode_in_memory(lambda index: rows[index].read(convert), names)
    return Labelled(images, None if None in labels else torch.tensor(labels), names, classes)


def decode_in_memory(read: Callable[[int], Tensor], names: Sequence[str]) -> Tensor:
    """Return images (N, C, H, W), as from ``decode``."""
    pixels, _ = decode(read, names)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def channels_first(images: Tensor, image_shape: tuple[int, ...] | None = None) -> Tensor:
    """Return images as (N, C, H, W). Channels may be last if no other layout is possible: where
    this is the shape of the model, or where only the last axis can be grey or RGB channels.

    >>> channels_first(torch.zeros(2, 8, 8, 3)).shape
    torch.Size([2, 3, 8, 8])

    Args:
        images: (N, C, H, W) or (N, H, W, C).
        image_shape: (C, H, W) of a model, or None.

    Raises:
        UserError: for an ambiguous layout.
    """
    shape = tuple(images.shape)
    if len(shape) != 4 or not images.numel() or shape[1:] == image_shape:
        return images  # ``check_shape`` refuses the first two
    if image_shape is not None:
        is_last = (shape[3], *shape[1:3]) == image_shape
        return images.permute(0, 3, 1, 2) if is_last else images
    channels, height, width = shape[1:]
    # either layout is plausible with grey or RGB channels, or with fewer channels than pixels
    may_be_first = channels in COLOURS or height == width or channels <= min(height, width)
    may_be_last = width in COLOURS or width < min(channels, height)
    if may_be_first and (not may_be_last or channels == height == width):
        return images
    if may_be_last and not may_be_first and width in COLOURS:
        return images.permute(0, 3, 1, 2)
    if may_be_last and not may_be_first and width in WITH_ALPHA:
        raise UserError(
            f"Images of shape {shape} have {width} channels, the last is alpha. Remove it: "
            f"images[..., :{WITH_ALPHA[width]}]. If the channels have other meanings, use "
            "images.permute(0, 3, 1, 2)."
        )
    raise UserError(
        f"Images of shape {shape} may have their channels first or last. If they are last, use "
        f"images.permute(0, 3, 1, 2). Images of {channels} channels and {height}x{width} pixels "
        "are not supported: if the channels are first, pad the images."
    )


def check_shape(images: Tensor, image_shape: tuple[int, ...] | None) -> None:
    """Raise a UserError if there are no images, or if their shape is not (N, C, H, W), where
    (C, H, W) is the shape of a model if it is given."""
    shape, expected = tuple(images.shape), image_shape or ("C", "H", "W")
    if not images.numel():
        raise UserError(f"Expected at least one image, got shape {shape}.")
    if len(shape) == 4 and image_shape in (None, shape[1:]):
        return
    advice = "Pass images of this size and number of channels."
    if len(shape) == 3:
        advice = "Add an axis: images[None] for one image, or images[:, None] for grey images."
    elif len(shape) == 4 and WITH_ALPHA.get(shape[1]) == expected[0]:
        advice = f"Remove the alpha channel: images[:, :{expected[0]}]."
    elif len(shape) == 4 and WITH_ALPHA.get(shape[3]) == expected[0]:
        advice = f"Remove the alpha channel: images[..., :{expected[0]}]."
    wanted = ", ".join(map(str, expected))
    raise UserError(f"Expected images of shape (N, {wanted}), got {shape}. {advice}")
