"""Whether drawn images are copies: how near they lie to the training images."""

from typing import NamedTuple

import torch
from torch import Tensor


class Nearest(NamedTuple):
    """Of N images the k nearest among others: root mean square distances of the pixels (N, k),
    the nearest first, and indices (N, k)."""

    distances: Tensor
    indices: Tensor


def nearest(images: Tensor, others: Tensor, num: int, chunk_size: int = 256) -> Nearest:
    """The ``num`` nearest of ``others`` (M, C, H, W) to each of ``images`` (N, C, H, W)."""
    rows, pool = images.flatten(1).double(), others.flatten(1).double()
    found = [
        torch.cdist(chunk, pool, compute_mode="donot_use_mm_for_euclid_dist").topk(
            num, largest=False
        )
        for chunk in rows.split(chunk_size)
    ]
    values, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Nearest(values / rows.shape[1] ** 0.5, indices)


def share_of_copies(drawn: Tensor, held_out: Tensor, quantile: float = 0.01) -> float:
    """The share of drawn images that lie nearer to a training image than all but ``quantile`` of
    the held-out ones do: about ``quantile`` for a model that does not copy.

    Args:
        drawn, held_out: distances (N,) and (M,) to the nearest training image.
    """
    return (drawn < held_out.quantile(quantile)).double().mean().item()
