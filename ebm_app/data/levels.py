"""Maps between integer levels, continuous values and values for display.

A data set with L levels holds integers k = 0..L-1. Three kinds of value are kept apart:

- levels k, uint8: what files store and what bits per dimension are about;
- continuous values x = (k + u) / L with u in [0, 1), uniform dequantisation (Theis et al.,
  arXiv:1511.01844, section 3.1): what a density model sees, level k being the cell
  [k / L, (k + 1) / L);
- display values k / (L - 1): the grid on [0, 1] that is shown and saved, from black to white.

``dequantise`` maps levels to continuous values, ``quantise`` continuous to display values and
``to_levels`` display values to levels; one after the other they give the levels back.
"""

from typing import Any

import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import as_tensor

#: levels of an image file
NUM_VALUES = 256


def dequantise(levels: Tensor, num_levels: int, noise: Tensor) -> Tensor:
    """Continuous values x = (k + u) / L (*) in [0, 1) of integer levels k (*), in the dtype of the
    noise u (*) in [0, 1), float32 or float64.

    x is rounded inside its cell: where the nearest number of the dtype already belongs to the
    neighbouring cell (u = 1 - 2^-24 in float32), x is the next number on the own side, so that
    ``quantise`` gives k back for every u.
    """
    k = levels.to(noise.dtype)
    x = (k + noise) / num_levels
    for _ in range(2):  # at an edge, x and x L are each half a unit off at most
        error = (x * num_levels).floor() - k
        x = torch.where(error == 0, x, torch.nextafter(x, -error))
    return x


def quantise(x: Tensor, num_levels: int) -> Tensor:
    """Display values of the levels k = floor(x L) of continuous x: ``(*) -> (*)``.

    Values below 0 take level 0, and values from 1 on level L - 1. This saturation is part of the
    definition: the outer cells reach to infinity, as a sample of a model may lie anywhere. Half
    precision is returned in float32.

    Raises:
        UserError: for values that are not finite, which a model may draw.
    """
    if not x.isfinite().all():
        raise UserError(
            "the images drawn are not finite: take other settings of the sampler, or a model "
            "whose training has not diverged"
        )
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return to_display((x * num_levels).floor().clamp(0, num_levels - 1), num_levels)


def to_display(levels: Tensor, num_levels: int) -> Tensor:
    """Display values k / (L - 1) in [0, 1] of levels k, ``(*) -> (*)``."""
    return levels / (num_levels - 1)


def to_levels(images: Tensor, num_levels: int) -> Tensor:
    """Levels k, uint8 ``(*)``, of display values ``(*)`` at most 1e-3 spacings off the grid, or of
    levels, uint8, returned as they are.

    Raises:
        UserError: for values that are not finite, outside [0, 1] or off the grid, for levels of L
            or more, and for any other dtype.
    """
    images = as_tensor(images, "images")
    if images.dtype == torch.uint8:
        if images.numel() and int(images.max()) >= num_levels:
            raise UserError(
                f"images hold the level {int(images.max())}, but {num_levels} levels end at "
                f"{num_levels - 1}: give images of the same data set"
            )
        return images
    if not images.is_floating_point():
        raise UserError(f"images are {images.dtype}: give floats in [0, 1] or uint8 levels")
    scaled = images.to(torch.promote_types(images.dtype, torch.float32)) * (num_levels - 1)
    k = scaled.round()
    wrong = ~((scaled - k).abs() <= 1e-3) | (k < 0) | (k > num_levels - 1)  # nan is wrong
    if wrong.any():
        value = float(images[wrong][0])
        kind = "off the grid" if 0 <= value <= 1 else "out of the range [0, 1]"
        raise UserError(
            f"images hold {value:.6g}, which is {kind} of the {num_levels} levels "
            f"k / {num_levels - 1}: scale them to [0, 1] and use quantise(images, {num_levels})"
        )
    return k.to(torch.uint8)


def image_format(part: Any) -> str:
    """Shape and levels of images, or of a model's configuration, in words: a model and images with
    the same words fit one another."""
    return f"shape {tuple(part.image_shape)} with {part.num_levels} levels"
