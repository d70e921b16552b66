"""Bits per dim of many images, shared among the processes."""

from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.likelihood.bits import log_likelihood, to_bits_per_dim
from ebm_app.runs.processes import Wrap, sharded


class Scores(NamedTuple):
    """Of N images: bits per dim, integration error in nats and network evaluations, each (N,)."""

    bits_per_dim: Tensor
    error: Tensor
    nfe: Tensor


def score_split(
    accelerator: Accelerator,
    ebm: EBM,
    levels: Tensor,
    noise: Tensor,
    batch_size: int = 128,
    wrap: Wrap = iter,
    **options: Any,
) -> Scores:
    """Score images, shared among the processes.

    Args:
        levels: (N, C, H, W). noise: (K, N, C, H, W), drawn for all images beforehand, so that the
            figures do not depend on batches or processes.
        wrap: put around the batches, for a progress bar. options: of ``log_likelihood``; its
            dequantiser is the model's own by default.
    """

    def score(rows: Tensor) -> Tensor:
        result = log_likelihood(
            ebm.energy,
            ebm.space,
            levels[rows].to(ebm.device),
            ebm.config.num_levels,
            noise[:, rows].to(ebm.device),
            **{"dequantiser": ebm.dequantiser, **options},
        )
        nfe = torch.full_like(result.error, result.nfe)
        return torch.stack([result.bits_per_dim, result.error, nfe], 1)

    return Scores(*sharded(accelerator, len(levels), 3, batch_size, score, wrap).unbind(1))


def score_flow(
    accelerator: Accelerator, flow: Flow, levels: Tensor, noise: Tensor, batch_size: int = 128
) -> Tensor:
    """Bits per dim (N,) of images by a flow, shared among the processes; see
    :func:`score_split`."""

    def score(rows: Tensor) -> Tensor:
        device = next(flow.buffers()).device
        log_prob = flow.log_prob(levels[rows].to(device), noise[:, rows].to(device))
        return to_bits_per_dim(log_prob, levels[0].numel())[:, None]

    return sharded(accelerator, len(levels), 1, batch_size, score, iter)[:, 0]
