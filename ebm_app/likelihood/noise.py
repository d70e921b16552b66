"""Uniform numbers from which dequantisers draw."""

from typing import Any

import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Draws, Seed, check_argument
from ebm_app.utils.tensors import as_tensor

#: Max uniform numbers in memory (4 GB).
MAX_NOISE = 2**30


def dequantisation_noise(repeats: int, levels: Tensor, seed: int) -> Tensor:
    """Draw uniform numbers (repeats, B, C, H, W) on the CPU, the same for every device.

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
    return torch.rand((repeats, *levels.shape), generator=torch.Generator().manual_seed(seed))


def noise_for(
    levels: Tensor, dtype: torch.dtype, seed: int, repeats: int = 1, noise: Any = None
) -> Tensor:
    """Return noise (K, B, C, H, W) in [0, 1) for levels (B, C, H, W), in ``dtype``: the user's
    ``noise``, or ``repeats`` draws.

    Raises:
        UserError: for noise of another shape or type, or outside [0, 1).
    """
    if noise is None:
        noise = dequantisation_noise(repeats, levels, seed)
    noise = as_tensor(noise, "noise")
    if noise.shape[1:] != levels.shape or not len(noise):
        raise UserError(
            f"Expected noise of shape (K, {', '.join(map(str, levels.shape))}), got "
            f"{tuple(noise.shape)}."
        )
    if not (noise.is_floating_point() and ((noise >= 0) & (noise < 1)).all()):
        raise UserError("Expected floating-point noise in [0, 1). Draw it with torch.rand.")
    # rounding to dtype could give 1
    return noise.to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)
