"""Bits per dim of many images by estimators, on all processes."""

import time
from itertools import combinations
from math import isfinite, log, sqrt
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from ebm_app.data.labels import names_of
from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.likelihood import Estimator
from ebm_app.utils.processes import Wrap, sharded
from ebm_app.utils.tensors import standard_error

#: Default number of images between updates of the progress bar
BATCH_SIZE = 128


def bits_of_images(
    accelerator: Accelerator,
    model: EBM | Flow,
    levels: Tensor,
    batch_size: int | None = None,
    wrap: Wrap = iter,
    labels: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``model.likelihood`` of images, sharded over all processes.

    Returns the bits per dim, the errors of the estimator in nats, NaN if unknown, and the NFE:
    (N,) each. The noise of an image depends on its index, neither on the batches nor on the number
    of processes.

    Args:
        levels: grey levels (N, C, H, W).
        batch_size: images per network call; if None, the model's default.
        wrap: wraps the batches, for a progress bar.
        labels: indices of classes (N,), for log P(image | label).
        options: further arguments of ``model.likelihood``, such as ``seed`` and ``repeats``.
    """

    if batch_size is not None and isinstance(model, EBM):  # a flow has no batch size
        options["batch_size"] = batch_size

    def columns_of(rows: Tensor) -> Tensor:
        conditions = {}
        if labels is not None:
            conditions["labels"] = names_of(labels[rows], model.config.classes())
        result = model.likelihood(levels[rows], indices=rows.tolist(), **conditions, **options)
        nfe = torch.full_like(result.error, result.nfe)
        return torch.stack([result.bits_per_dim, result.error, nfe], 1)

    size = batch_size or BATCH_SIZE
    table = sharded(accelerator, len(levels), 3, size, columns_of, wrap)
    return table.unbind(1)


def bits_by_estimator(
    accelerator: Accelerator,
    ebm: EBM,
    levels: Tensor,
    estimator: Estimator,
    batch_size: int | None,
    repeats: int,
    **options: Any,
) -> tuple[Tensor, dict[str, Any]]:
    """Return the bits per dim (N,) of images by one estimator, and a summary.

    The summary has the mean ``bits_per_dim``, its standard error ``stderr`` over images, the root
    mean square error ``image_error`` of the estimator for one image, the error ``numerical_error``
    of the mean, the margin ``t_margin``, and the cost. Only errors of random draws average out
    over images; others may have the same sign for all of them.

    Args:
        options: further arguments of ``bits_of_images``.
    """
    begin = time.perf_counter()
    options |= {"estimator": estimator, "repeats": repeats}
    bits, error, nfe = bits_of_images(accelerator, ebm, levels, batch_size, **options)
    end = ebm.dequantiser.time(ebm.cells, ebm.model.path, ebm.model.end)
    image_error = error.square().mean().sqrt().item() / (levels[0].numel() * log(2))
    is_known = isfinite(image_error)  # NaN for a single probe or draw
    num_independent = len(levels) if estimator.error_is_drawn else 1
    return bits, {
        "bits_per_dim": bits.mean().item(),
        "stderr": standard_error(bits).item(),
        "image_error": image_error if is_known else None,
        "numerical_error": image_error / sqrt(num_independent) if is_known else None,
        "t_margin": 1 - end,
        "nfe": nfe.mean().item(),
        "num_images": len(levels),
        "repeats": repeats,
        "seconds": time.perf_counter() - begin,
    }


def disagreements(bits: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Compare each pair of estimators on the same images.

    Args:
        bits: estimator -> bits per dim (N,).

    Returns:
        For each pair the mean ``difference`` (``first`` minus ``second``), its standard error
        ``stderr``, and the ``correlation`` over images, None for constant bits.
    """
    pairs = []
    for a, b in combinations(bits, 2):
        correlation = torch.corrcoef(torch.stack([bits[a], bits[b]]))[0, 1].item()
        pairs.append(
            {
                "first": a,
                "second": b,
                "difference": (bits[a] - bits[b]).mean().item(),
                "stderr": standard_error(bits[a] - bits[b]).item(),
                "correlation": correlation if isfinite(correlation) else None,
            }
        )
    return pairs
