"""Splits of a data set by the names of its images.

The split of an image is a seeded function of its name, so added images move no other image. Equal
images with different names may be in different splits.
"""

import hashlib
import os
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.lazy import Images
from ebm_app.utils.errors import UserError

SPLITS = ("train", "validation", "test")
#: Interval of the positions of each held-out split, see ``position_of``
HELD_OUT = {"test": (0.0, 0.1), "validation": (0.1, 0.2)}
#: Seed of the positions
SEED = 0
#: Min images in a data set to be split, and in each split
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


def position_of(name: str) -> float:
    """Return a hash of a name that is uniform in [0, 1).

    >>> position_of("cats/1.png")
    0.7669479501929644
    """
    digest = hashlib.sha256(os.fsencode(f"{SEED} {name}")).digest()
    return int.from_bytes(digest[:6]) / 2**48


def split_by_name(data: Labelled, held_out: Collection[str] = HELD_OUT) -> dict[str, Labelled]:
    """Split images by the positions of their names.

    Each held-out split has a tenth of the images on average, with binomial spread. Its images are
    in the order of their positions, so that the first ones are a random sample.

    Args:
        data: images with names. The names of image files are their paths in the data set's folder.
        held_out: splits to hold out, "validation" and "test"; other images are for training.

    Raises:
        UserError: if there are fewer than 10 images, or fewer than 2 in a split.
    """
    position, order = torch.tensor(
        [position_of(name) for name in data.names], dtype=torch.float64
    ).sort()
    rows, is_train = {}, torch.ones(len(order), dtype=torch.bool)
    for split, (low, high) in HELD_OUT.items():
        if split in held_out:
            is_inside = (position >= low) & (position < high)
            rows[split], is_train = order[is_inside], is_train & ~is_inside
    rows["train"] = order[is_train]
    sizes = {split: len(own) for split, own in rows.items()}
    if len(order) < MIN_IMAGES or min(sizes.values()) < MIN_SPLIT:
        counts = ", ".join(f"{size} for {split}" for split, size in sizes.items())
        raise UserError(
            f"Expected at least {MIN_IMAGES} images and {MIN_SPLIT} in each split, got "
            f"{len(order)} images: {counts}. Add images, or make the splits yourself as folders "
            "train, validation and test."
        )
    return {split: select(data, own) for split, own in rows.items()}
