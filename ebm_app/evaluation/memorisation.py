"""Whether drawn images are copies: how near they lie to the training images."""

import torch
from torch import Tensor


def nearest(images: Tensor, others: Tensor, chunk_size: int = 256) -> tuple[Tensor, Tensor]:
    """Root mean square distances of the pixels (N,) of images (N, C, H, W) to the nearest of
    ``others`` (M, C, H, W), and its indices (N,)."""
    rows, pool = images.flatten(1).double(), others.flatten(1).double()
    found = [
        torch.cdist(chunk, pool, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        for chunk in rows.split(chunk_size)
    ]
    values, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
    return values / rows.shape[1] ** 0.5, indices


def share_of_copies(drawn: Tensor, held_out: Tensor, quantile: float = 0.01) -> float:
    """The share of drawn images that lie nearer to a training image than all but ``quantile`` of
    the held-out ones do: about ``quantile`` for a model that does not copy.

    Args:
        drawn, held_out: distances (N,) and (M,) to the nearest training image.
    """
    return (drawn < held_out.quantile(quantile)).double().mean().item()
