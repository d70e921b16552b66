"""Maps between integer levels, continuous values and display values.

Images with L levels have three representations:

- levels k = 0..L-1, uint8: stored in files; bits per dim refer to them;
- continuous values x = (k + u) / L with u in [0, 1): uniform dequantisation (Theis et al.,
  arXiv:1511.01844, section 3.1), the input of density models;
- display values k / (L - 1) in [0, 1]: used by the API.

``dequantise`` maps levels to continuous values, ``quantise`` continuous values to display values,
and ``to_levels`` display values to levels. Their composition is the identity.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import NumLevels, check_argument
from ebm_app.utils.tensors import as_tensor

#: Number of levels of 8-bit image files
NUM_VALUES = 256


@runtime_checkable
class ImageFormat(Protocol):
    """Image format of a data set or model: shape (C, H, W) and number of grey levels."""

    image_shape: tuple[int, ...]
    num_levels: int


def image_format(form: ImageFormat) -> str:
    """Describe an image format; equal formats have equal descriptions."""
    return f"shape {tuple(form.image_shape)} with {form.num_levels} levels"


def dequantise(levels: Tensor, num_levels: int, noise: Tensor) -> Tensor:
    """Return continuous values x = (k + u) / L in [0, 1) for levels k (*), in the dtype of u.

    x is rounded within its cell: if the nearest floating-point number is in the next cell, as for
    u = 1 - 2^-24 in float32, x is the last number of its own cell. ``quantise`` therefore returns
    k for every u.

    Args:
        noise: u (*) in [0, 1), float32 or float64.
    """
    k = levels.to(noise.dtype)
    x = (k + noise) / num_levels
    for _ in range(2):  # x and x L are each off by at most half a unit
        error = (x * num_levels).floor() - k
        x = torch.where(error == 0, x, torch.nextafter(x, -error))
    return x


def quantise(x: Any, num_levels: int) -> Tensor:
    """Return display values of the levels k = floor(x L) of values x in [0, 1]: ``(*) -> (*)``.
    1 has the level L - 1.

    >>> quantise(torch.tensor([0.0, 0.3, 1.0]), 3)
    tensor([0., 0., 1.])

    Args:
        x: tensor or array of floats. Half precision is converted to float32.
        num_levels: number L of levels, from 2 to 256.

    Raises:
        UserError: for values that are not floats in [0, 1], and another number of levels.
    """
    num_levels = check_argument(NumLevels, "num_levels", num_levels)
    x = as_tensor(x, "images")
    if not x.is_floating_point() or not ((x >= 0) & (x <= 1)).all():
        raise UserError("Expected floating-point images in [0, 1]. Scale them, as uint8 / 255.")
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return to_display((x * num_levels).floor().clamp(max=num_levels - 1), num_levels)


def quantise_samples(x: Tensor, num_levels: int) -> Tensor:
    """Return ``quantise`` of samples, which are clamped to [0, 1].

    Raises:
        UserError: for non-finite values.
    """
    if not x.isfinite().all():
        raise UserError(
            "The sampled images are not finite. Change the settings of the sampler, or check "
            "whether the training of the model has diverged."
        )
    return quantise(x.clamp(0, 1), num_levels)


def to_display(levels: Tensor, num_levels: int) -> Tensor:
    """Return display values k / (L - 1) in [0, 1] for levels k: ``(*) -> (*)``."""
    return levels / (num_levels - 1)


def checked_levels(
    images: Tensor | np.ndarray, image_shape: tuple[int, ...] | None, num_levels: int
) -> Tensor:
    """Return the grey levels of a user's images, uint8 (N, C, H, W).

    Args:
        images: (N, C, H, W), uint8 levels or floats level / (L - 1) in [0, 1].
        image_shape: shape (C, H, W) of the images of a model. None for images of any shape.
        num_levels: number L of grey levels.

    Raises:
        UserError: for images of another type or shape, and as in ``to_levels``.
    """
    expected = ", ".join(map(str, ("N", *(image_shape or "CHW"))))
    if not isinstance(images, Tensor | np.ndarray):
        raise UserError(
            f"Expected a tensor or array ({expected}), got {type(images).__name__}. Read image "
            "files with ebm_app.read_images."
        )
    permute = "permute" if isinstance(images, Tensor) else "transpose"
    images = as_tensor(images, "images")
    shape, advice = tuple(images.shape), "Pass images of this shape."
    if not images.numel():
        advice = "Pass at least one image."
    elif len(shape) == 3:
        advice = "Add an axis: images[None] for one image, or images[:, None] for grey images."
    elif len(shape) == 4 and _are_channels_last(shape[1:], image_shape):
        advice = f"Move channels first with images.{permute}(0, 3, 1, 2)."
    elif len(shape) == 4 and image_shape in (None, shape[1:]):
        return to_levels(images, num_levels)
    raise UserError(f"Expected images of shape ({expected}), got {shape}. {advice}")


def _are_channels_last(shape: tuple[int, ...], image_shape: tuple[int, ...] | None) -> bool:
    """Whether the shape of an image is (H, W, C), for (C, H, W) of a model, or, without a model,
    if only the last axis can be 1 to 4 channels."""
    height, width, channels = shape
    if image_shape is None:
        return channels <= 4 < min(height, width)
    return shape != image_shape == (channels, height, width)


def to_levels(images: Any, num_levels: int) -> Tensor:
    """Convert display values ``(*)`` to levels, uint8 ``(*)``; return uint8 levels unchanged.

    Raises:
        UserError: for an unsupported dtype, values outside [0, 1], values more than 1e-3 grid
            spacings from k / (L - 1), and levels of L or more.
    """
    images = as_tensor(images, "images")
    if images.dtype == torch.uint8:
        if images.numel() and int(images.max()) >= num_levels:
            raise UserError(
                f"Expected levels from 0 to {num_levels - 1}, got level {int(images.max())}. Use "
                f"images with {num_levels} levels."
            )
        return images
    if not images.is_floating_point():
        raise UserError(
            f"Expected floats in [0, 1] or uint8 levels, got {images.dtype}. Convert levels to "
            "uint8."
        )
    scaled = images.to(torch.promote_types(images.dtype, torch.float32)) * (num_levels - 1)
    k = scaled.round()
    wrong = ~((scaled - k).abs() <= 1e-3) | (k < 0) | (k > num_levels - 1)  # also true for NaN
    if wrong.any():
        value = float(images[wrong][0])
        kind = "not one" if 0 <= value <= 1 else "outside the range [0, 1]"
        raise UserError(
            f"Images have a value {value:.6g}, which is {kind} of the {num_levels} levels "
            f"k / {num_levels - 1}. Scale them to [0, 1] and call quantise(images, {num_levels})."
        )
    return k.to(torch.uint8)
