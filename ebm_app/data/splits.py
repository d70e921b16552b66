"""Splits of a data set by the content of its images.

Copies of an image are in the same split, and images that are added later move no other image.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.lazy import Images, image_hashes
from ebm_app.utils.errors import UserError

SPLITS = ("train", "validation", "test")
#: Shares of the held-out splits: consecutive intervals of the hashes, from the lowest
HELD_OUT = {"test": 0.1, "validation": 0.1}
#: Min distinct images of a data set that is split, and of each of its splits
MIN_IMAGES, MIN_SPLIT = 10, 2


class Labelled(NamedTuple):
    """N images, with their class labels (N,) and their names if there are any."""

    images: Images
    labels: Tensor | None = None
    names: list[str] | None = None


def select(part: Labelled, rows: Tensor) -> Labelled:
    """Return some images with their labels and names, without decoding lazy images."""
    images, labels, names = part
    chosen = images[rows] if isinstance(images, Tensor) else images.select(rows)
    names = None if names is None else [names[row] for row in rows.tolist()]
    return Labelled(chosen, None if labels is None else labels[rows], names)


def first_copies(hashes: Tensor) -> Tensor:
    """Return whether each image is the first with its content, (N,) bool, from hashes (N,).

    >>> first_copies(torch.tensor([7, 3, 7]))
    tensor([ True,  True, False])
    """
    order = hashes.argsort(stable=True)
    is_first = torch.ones(len(hashes), dtype=torch.bool)
    is_first[order[1:]] = hashes[order].diff() != 0
    return is_first


def split_by_content(part: Labelled, held_out: Collection[str] = HELD_OUT) -> dict[str, Labelled]:
    """Split images by the hashes of their content, in the order of the hashes.

    Each held-out split has a tenth of the images on average, with a binomial spread.

    Args:
        held_out: splits to hold out, "validation" and "test"; the other images are for training.

    Raises:
        UserError: if there are fewer than 10 distinct images, or fewer than 2 in a split.
    """
    hashes = image_hashes(part.images)
    order = hashes.argsort(stable=True)
    position = hashes[order].double() / 2.0**64 + 0.5  # uniform in [0, 1)
    rows, rest, begin = {}, torch.ones(len(order), dtype=torch.bool), 0.0
    for name, share in HELD_OUT.items():
        is_inside = (position >= begin) & (position < begin + share)
        begin += share
        if name in held_out:
            rows[name], rest = order[is_inside], rest & ~is_inside
    rows["train"] = order[rest]
    sizes = {name: len(hashes[own].unique()) for name, own in rows.items()}
    num = sum(sizes.values())
    if num < MIN_IMAGES or min(sizes.values()) < MIN_SPLIT:
        counts = ", ".join(f"{size} for {name}" for name, size in sizes.items())
        raise UserError(
            f"{len(order)} images, of which {num} are distinct, give {counts}. Expected at least "
            f"{MIN_IMAGES} distinct images and {MIN_SPLIT} in each split. Add images, or make the "
            "splits yourself as folders train, validation and test."
        )
    return {name: select(part, own) for name, own in rows.items()}
