"""Splits of a data set by the names of its images.

The split of an image is a seeded function of its name, so added images move no other image. Equal
images with different names may be in different splits.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from ebm_app.utils.errors import UserError

SPLITS = ("train", "validation", "test")
#: Lower-case name of a folder, or of a split of a Hugging Face data set -> split
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
#: Interval of the positions of each held-out split, see ``position_of``
HELD_OUT = {"test": (0.0, 0.1), "validation": (0.1, 0.2)}
#: Seed of the positions
SEED = 0
#: Min images in a data set to be split, and in each split
MIN_IMAGES, MIN_SPLIT = 10, 2


class Labelled(NamedTuple):
    """N images, with class labels (N,) and names, or None, and names of the classes, if any."""

    images: Tensor
    labels: Tensor | None = None
    names: list[str] | None = None
    class_names: tuple[str, ...] = ()


def named_splits(names: Iterable[str]) -> dict[str, str]:
    """Return split -> name, for the names that are a split's.

    >>> named_splits(["train", "dev", "other"])
    {'train': 'train', 'validation': 'dev'}

    Raises:
        UserError: for two names of one split.
    """
    found = {}
    for name in sorted(names):
        if split := SPLIT_NAMES.get(name.lower()):
            if split in found:
                raise UserError(
                    f"Split {split} has several names: {found[split]}, {name}. Keep one."
                )
            found[split] = name
    return {split: found[split] for split in SPLITS if split in found}


def position_of(name: str) -> float:
    """Return a hash of a name that is uniform in [0, 1).

    >>> position_of("cats/1.png")
    0.7669479501929644
    """
    digest = hashlib.sha256(os.fsencode(f"{SEED} {name}")).digest()
    return int.from_bytes(digest[:6]) / 2**48


def split_of(position: float) -> str:
    """Return the split of a position in [0, 1)."""
    inside = (split for split, (low, high) in HELD_OUT.items() if low <= position < high)
    return next(inside, "train")


def split_by_name(
    names: Sequence[str], held_out: Collection[str] = HELD_OUT
) -> dict[str, list[int]]:
    """Split images by the positions of their names.

    Each held-out split has a tenth of the images on average, with binomial spread. Its images are
    in the order of their positions, so that the first ones are a random sample.

    Args:
        names: names of the images. The names of image files are their paths in the data set's
            folder.
        held_out: splits to hold out, "validation" and "test"; other images are for training.

    Returns:
        The indices of the images of each split.

    Raises:
        UserError: if there are fewer than 10 images, or fewer than 2 in a split.
    """
    rows = {"train": []} | {split: [] for split in held_out}
    for position, row in sorted((position_of(name), row) for row, name in enumerate(names)):
        split = split_of(position)
        rows[split if split in held_out else "train"].append(row)
    sizes = {split: len(own) for split, own in rows.items()}
    if len(names) < MIN_IMAGES or min(sizes.values()) < MIN_SPLIT:
        counts = ", ".join(f"{size} for {split}" for split, size in sizes.items())
        raise UserError(
            f"Expected at least {MIN_IMAGES} images and {MIN_SPLIT} in each split, got "
            f"{len(names)} images: {counts}. Add images, or make the splits yourself as folders "
            "train, validation and test."
        )
    return rows
