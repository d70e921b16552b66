"""Bits per dim of many images, shared among the processes, and what a table says of them."""

import time
from itertools import combinations
from math import isfinite, log, sqrt
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.likelihood import Estimator
from ebm_app.likelihood.dequantisation import Dequantiser
from ebm_app.utils.processes import Wrap, sharded
from ebm_app.utils.tensors import standard_error


class ImageBits(NamedTuple):
    """Of N images: bits per dim, integration error in nats, network evaluations, and the parts of
    the bits that the estimator tells apart, each (N,)."""

    bits_per_dim: Tensor
    error: Tensor
    nfe: Tensor
    parts: dict[str, Tensor]


def bits_of_images(
    accelerator: Accelerator,
    model: EBM | Flow,
    levels: Tensor,
    noise: Tensor,
    batch_size: int = 128,
    wrap: Wrap = iter,
    labels: Tensor | None = None,
    **options: Any,
) -> ImageBits:
    """``model.likelihood`` of images, shared among the processes.

    Args:
        levels: (N, C, H, W). noise: (K, N, C, H, W), drawn for all images beforehand, so that the
            result does not depend on batches or processes. labels: (N,), for log P(image | label).
        wrap: put around the batches, for a progress bar.
        options: of ``model.likelihood``.
    """
    parts = getattr(options.get("estimator"), "parts", ())

    def rows_of(indices: Tensor) -> Tensor:
        told = {} if labels is None else {"labels": labels[indices]}
        found = model.likelihood(levels[indices], noise=noise[:, indices], **told, **options)
        nfe = torch.full_like(found.error, found.nfe)
        columns = [found.bits_per_dim, found.error, nfe, *(found.parts[name] for name in parts)]
        return torch.stack(columns, 1)

    count = 3 + len(parts)
    table = sharded(accelerator, len(levels), count, batch_size, rows_of, wrap).unbind(1)
    return ImageBits(*table[:3], dict(zip(parts, table[3:], strict=True)))


def bits_by_estimator(
    accelerator: Accelerator,
    ebm: EBM,
    levels: Tensor,
    noise: Tensor,
    estimator: Estimator,
    dequantiser: Dequantiser,
    batch_size: int,
    wrap: Wrap = iter,
    **options: Any,
) -> tuple[Tensor, dict[str, Any]]:
    """Bits per dim of every image (N,), and the metrics of a table: their mean, its standard
    error over images, the estimator's own error of one image (root mean square) and the part of
    the mean's error that these make, the time at which the density is read, and the cost.

    ``options`` are those of ``bits_of_images``.
    """
    begin, path = time.perf_counter(), ebm.density.path
    options |= {"estimator": estimator, "dequantiser": dequantiser}
    found = bits_of_images(accelerator, ebm, levels, noise, batch_size, wrap, **options)
    end = dequantiser.time(ebm.config.num_levels, ebm.space, path, ebm.density.end)
    image_error = found.error.square().mean().sqrt().item() / (levels[0].numel() * log(2))
    parts = {name: part.mean().item() for name, part in found.parts.items()}
    # one probe or draw has no error
    of_image, of_mean = (
        error if isfinite(error) else None
        for error in (image_error, image_error / sqrt(len(levels)))
    )
    return found.bits_per_dim, {
        "bits_per_dim": found.bits_per_dim.mean().item(),
        "stderr": standard_error(found.bits_per_dim).item(),
        "image_error": of_image,
        "numerical_error": of_mean,
        "eps": 1 - end,
        "final_variance": path.variance(torch.tensor(end, dtype=torch.float64)).item(),
        "nfe": found.nfe.mean().item(),
        "num_images": len(levels),
        "repeats": len(noise),
        "seconds": time.perf_counter() - begin,
        **({"parts": parts} if parts else {}),
    }


def disagreements(bits: dict[str, Tensor]) -> list[dict[str, Any]]:
    """For each pair of estimators the mean difference of bits per dim on the same images, first
    less second, with the standard error of that mean, and the correlation over images (None where
    there is no spread)."""
    found = []
    for a, b in combinations(bits, 2):
        correlation = torch.corrcoef(torch.stack([bits[a], bits[b]]))[0, 1].item()
        found.append(
            {
                "first": a,
                "second": b,
                "difference": (bits[a] - bits[b]).mean().item(),
                "stderr": standard_error(bits[a] - bits[b]).item(),
                "correlation": correlation if isfinite(correlation) else None,
            }
        )
    return found
