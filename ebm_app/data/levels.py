"""Maps between integer levels, continuous values and display values.

An image has three forms, for L levels:

- levels k = 0..L-1, uint8: the content of files, and the reference of bits per dimension;
- continuous values x = (k + u) / L with u in [0, 1): uniform dequantisation (Theis et al.,
  arXiv:1511.01844, section 3.1), the form that density models see;
- display values k / (L - 1) in [0, 1]: the form of the API and of saved images.

``dequantise`` maps levels to continuous values, ``quantise`` continuous to display values and
``to_levels`` display values to levels; their composition is the identity.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import as_tensor

#: Levels of 8-bit image files
NUM_VALUES = 256


@runtime_checkable
class ImageFormat(Protocol):
    """Shape (C, H, W) and number of grey levels of images, as in data sets and configurations."""

    image_shape: tuple[int, ...]
    num_levels: int


def image_format(form: ImageFormat) -> str:
    """Describe shape and levels; a model and images fit if their descriptions are equal."""
    return f"shape {tuple(form.image_shape)} with {form.num_levels} levels"


def dequantise(levels: Tensor, num_levels: int, noise: Tensor) -> Tensor:
    """Return continuous values x = (k + u) / L in [0, 1) of levels k (*), in the dtype of u.

    x is rounded within its cell. If the nearest number of the dtype is in the next cell
    (u = 1 - 2^-24 in float32), x is the last number of its own cell, so that ``quantise`` returns
    k for every u.

    Args:
        noise: u (*) in [0, 1), float32 or float64.
    """
    k = levels.to(noise.dtype)
    x = (k + noise) / num_levels
    for _ in range(2):  # at an edge, x and x L are each off by half a unit at most
        error = (x * num_levels).floor() - k
        x = torch.where(error == 0, x, torch.nextafter(x, -error))
    return x


def quantise(x: Tensor, num_levels: int) -> Tensor:
    """Return display values of the levels k = floor(x L) of continuous x: ``(*) -> (*)``.

    Values below 0 have level 0 and values from 1 on have level L - 1, because samples of a model
    may lie anywhere. Half precision is returned in float32.

    Raises:
        UserError: for values that are not finite.
    """
    if not x.isfinite().all():
        raise UserError(
            "The sampled images are not finite. Change the settings of the sampler, or use a "
            "model whose training has not diverged."
        )
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return to_display((x * num_levels).floor().clamp(0, num_levels - 1), num_levels)


def to_display(levels: Tensor, num_levels: int) -> Tensor:
    """Return display values k / (L - 1) in [0, 1] of levels k: ``(*) -> (*)``."""
    return levels / (num_levels - 1)


def to_levels(images: Any, num_levels: int) -> Tensor:
    """Return levels k, uint8 ``(*)``, of display values ``(*)``; uint8 levels are unchanged.

    Raises:
        UserError: for another dtype, values outside [0, 1] or further than 1e-3 grid spacings from
            k / (L - 1), and levels of L or more.
    """
    images = as_tensor(images, "images")
    if images.dtype == torch.uint8:
        if images.numel() and int(images.max()) >= num_levels:
            raise UserError(
                f"Expected levels of 0 to {num_levels - 1}, got level {int(images.max())}. Use "
                "images of the same data set."
            )
        return images
    if not images.is_floating_point():
        raise UserError(f"Expected images in [0, 1] or uint8 levels, got {images.dtype}.")
    scaled = images.to(torch.promote_types(images.dtype, torch.float32)) * (num_levels - 1)
    k = scaled.round()
    wrong = ~((scaled - k).abs() <= 1e-3) | (k < 0) | (k > num_levels - 1)  # true for NaN
    if wrong.any():
        value = float(images[wrong][0])
        kind = "off the grid" if 0 <= value <= 1 else "out of the range [0, 1]"
        raise UserError(
            f"Images hold {value:.6g}, which is {kind} of the {num_levels} levels "
            f"k / {num_levels - 1}. Scale them to [0, 1] and call quantise(images, {num_levels})."
        )
    return k.to(torch.uint8)
