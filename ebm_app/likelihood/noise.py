"""Uniform numbers from which dequantisers draw.

``DequantisationNoise`` gives the numbers of some images for one draw after another. They come from
a generator per image, seeded by the seed and the index of the image, or from the user.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Draws, Seed, check_argument
from ebm_app.utils.random import DEQUANTISATION, ImageNoise, make_generator
from ebm_app.utils.tensors import as_tensor

#: Max uniform numbers in memory (4 GB).
MAX_NOISE = 2**30


class DequantisationNoise(Protocol):
    """Source of uniform numbers in [0, 1) for B images (C, H, W)."""

    def __getitem__(self, rows: slice | Sequence[int]) -> Self:
        """Return the source for some of the images."""

    def uniform_like(self, x: Tensor) -> Tensor:
        """Return the numbers of the next draw, with the shape, dtype and device of ``x``."""


class GivenNoise:
    """Noise of the user, (K, B, C, H, W), for K draws."""

    def __init__(self, noise: Tensor) -> None:
        self.noise, self.index = noise, 0

    def __getitem__(self, rows: slice | Sequence[int]) -> Self:
        other = type(self)(self.noise[:, rows])
        other.index = self.index
        return other

    def uniform_like(self, x: Tensor) -> Tensor:
        self.index += 1
        return self.noise[self.index - 1].to(x)


def dequantisation_noise(repeats: int, levels: Tensor, seed: int) -> Tensor:
    """Draw uniform numbers (repeats, B, C, H, W) on the CPU, the same for every device. Those of
    an image only depend on the seed and its index, and are the draws of ``ImageNoise``.

    Raises:
        UserError: for ``repeats`` or a seed out of range, or too many numbers for memory.
    """
    repeats, seed = check_argument(Draws, "repeats", repeats), check_argument(Seed, "seed", seed)
    if repeats * levels.shape.numel() > MAX_NOISE:
        most = MAX_NOISE // levels.shape.numel()
        raise UserError(
            f"{repeats} draws of {len(levels)} images exceed the memory limit. Use at most {most} "
            "draws, or fewer images."
        )
    noise = torch.empty((repeats, *levels.shape), dtype=torch.float32)
    for index in range(len(levels)):
        generator = make_generator("cpu", seed, DEQUANTISATION, index)
        for draw in noise[:, index]:
            torch.rand(draw.shape, generator=generator, out=draw)
    return noise


def noise_for(
    levels: Tensor, dtype: torch.dtype, seed: int, repeats: int | None = None, noise: Any = None
) -> Tensor:
    """Return noise (K, B, C, H, W) in [0, 1) for levels (B, C, H, W), in ``dtype``: the user's
    ``noise``, or ``repeats`` draws, by default one.

    Raises:
        UserError: for noise of another shape or type, outside [0, 1), or of another number of
            draws than ``repeats``.
    """
    if noise is None:
        noise = dequantisation_noise(1 if repeats is None else repeats, levels, seed)
    noise = as_tensor(noise, "noise")
    if noise.shape[1:] != levels.shape or not len(noise):
        raise UserError(
            f"Expected noise of shape (K, {', '.join(map(str, levels.shape))}), got "
            f"{tuple(noise.shape)}."
        )
    if repeats not in (None, len(noise)):
        raise UserError(f"repeats is {repeats}, but noise has {len(noise)} draws. Leave out one.")
    if not (noise.is_floating_point() and ((noise >= 0) & (noise < 1)).all()):
        raise UserError("Expected floating-point noise in [0, 1). Draw it with torch.rand.")
    # rounding to dtype could give 1
    return noise.to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)


def seeded_noise(seed: int, indices: Iterable[int]) -> ImageNoise:
    """Return the source of the noise of images with ``indices``.

    Raises:
        UserError: for a seed out of range.
    """
    return ImageNoise(check_argument(Seed, "seed", seed), indices, DEQUANTISATION)
