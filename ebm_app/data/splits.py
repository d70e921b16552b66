"""Splits of a data set by image content.

Copies of an image are always in the same split, and adding images does not move other images.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.lazy import Images, image_hashes
from ebm_app.utils.errors import UserError

SPLITS = ("train", "validation", "test")
#: Shares of the held-out splits, as consecutive intervals of the hashes
HELD_OUT = {"test": 0.1, "validation": 0.1}
#: Min distinct images in a data set to be split, and in each split
MIN_IMAGES, MIN_SPLIT = 10, 2


class Labelled(NamedTuple):
    """N images, with class labels (N,) and names, or None, and names of the classes, if any."""

    images: Images
    labels: Tensor | None = None
    names: list[str] | None = None
    class_names: tuple[str, ...] = ()


def select(data: Labelled, rows: Tensor) -> Labelled:
    """Return a subset of images with labels and names, without decoding lazy images."""
    images, labels, names, class_names = data
    chosen = images[rows] if isinstance(images, Tensor) else images.select(rows)
    names = None if names is None else [names[row] for row in rows.tolist()]
    return Labelled(chosen, None if labels is None else labels[rows], names, class_names)


def split_by_content(data: Labelled, held_out: Collection[str] = HELD_OUT) -> dict[str, Labelled]:
    """Split images by the hashes of their content. Splits are in the order of the hashes.

    Each held-out split has a tenth of the images on average, with binomial spread.

    Args:
        held_out: splits to hold out, "validation" and "test"; other images are for training.

    Raises:
        UserError: if there are fewer than 10 distinct images, or fewer than 2 in a split.
    """
    hashes = image_hashes(data.images)
    order = hashes.argsort(stable=True)
    position = hashes[order].double() / 2.0**64 + 0.5  # uniform in [0, 1)
    rows, is_train, begin = {}, torch.ones(len(order), dtype=torch.bool), 0.0
    for name, share in HELD_OUT.items():
        is_inside = (position >= begin) & (position < begin + share)
        begin += share
        if name in held_out:
            rows[name], is_train = order[is_inside], is_train & ~is_inside
    rows["train"] = order[is_train]
    sizes = {name: len(hashes[own].unique()) for name, own in rows.items()}
    num = sum(sizes.values())
    if num < MIN_IMAGES or min(sizes.values()) < MIN_SPLIT:
        counts = ", ".join(f"{size} for {name}" for name, size in sizes.items())
        raise UserError(
            f"Expected at least {MIN_IMAGES} distinct images and {MIN_SPLIT} in each split, got "
            f"{len(order)} images, of which {num} are distinct: {counts}. Add images, or make the "
            "splits yourself as folders train, validation and test."
        )
    return {name: select(data, own) for name, own in rows.items()}
