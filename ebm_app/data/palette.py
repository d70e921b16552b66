"""The few grey values that a folder of images uses: its palette.

A file holds values 0..255. Where the training images use L <= 64 of them, the levels 0..L-1 are
indices into that sorted palette. An image has the same probability as over 256 levels, since all
others have none, and the bins of a density are as wide as L levels allow. The empty palette,
``()``, stands for levels that are evenly spaced from black to white.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened

NUM_VALUES = 256
#: a palette is no longer than this: at least two of the eight bits of a value are then saved
MAX_PALETTE = 64
#: numbers of the training images for each value of a palette, at least: with fewer, values that
#: other images hold are likely to be missing by chance
MIN_USES = 100

Palette = tuple[int, ...]


def find_palette(values: Tensor) -> Palette:
    """The sorted values of training images, uint8 (*), where they are few, otherwise ().

    Few are 2 to 64, with 100 numbers in the images for each of them.

    >>> find_palette(torch.tensor([9, 200, 30], dtype=torch.uint8).repeat(100))
    (9, 30, 200)
    """
    found = torch.bincount(values.flatten(), minlength=NUM_VALUES).nonzero().flatten().tolist()
    is_few = 2 <= len(found) <= min(MAX_PALETTE, values.numel() // MIN_USES)
    return tuple(found) if is_few else ()


def to_indices(values: Tensor, palette: Sequence[int]) -> Tensor:
    """Levels of values 0..255, uint8 (*): their indices in the palette, or themselves where it is
    empty.

    >>> to_indices(torch.tensor([30, 9], dtype=torch.uint8), (9, 30, 200))
    tensor([1, 0], dtype=torch.uint8)

    Raises:
        UserError: naming the first value that the palette does not have.
    """
    if not palette:
        return values
    index = torch.full((NUM_VALUES,), -1, dtype=torch.int16, device=values.device)
    index[list(palette)] = torch.arange(len(palette), dtype=torch.int16, device=values.device)
    found = index[values.long()]
    if (found < 0).any():
        raise UserError(
            f"images hold the grey value {int(values[found < 0][0])}, but the training images "
            f"only {in_words(palette)}: train on images that hold it too, or leave such images out"
        )
    return found.to(torch.uint8)


def check_palette(palette: Sequence[int], num_levels: int) -> None:
    """Raise a UserError for a palette that is neither empty nor L different values 0..255 in
    order."""
    in_order = list(palette) == sorted(set(palette) & set(range(NUM_VALUES)))
    if palette and not (in_order and len(palette) == num_levels):
        raise UserError(
            f"the palette {shortened(in_words(palette))} is not of {num_levels} different values "
            "0 to 255 in order: give one that is, or none"
        )


def form_of(part: Any) -> str:
    """Shape and levels of images, or of a model's configuration, in words: a model and images with
    the same words fit one another."""
    grey = f", the grey values {in_words(part.palette)}" if part.palette else ""
    return f"shape {tuple(part.image_shape)} with {part.num_levels} levels{grey}"


def in_words(palette: Sequence[int]) -> str:
    """The values, separated by blanks."""
    return " ".join(map(str, palette))
