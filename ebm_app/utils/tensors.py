"""Small tensor functions used by all layers."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError, shorten

#: Max elements of x per network call. Above 2^16 on a CPU, allocating the activations costs as
#: much as the network.
CHUNK_SIZES, LARGE_CHUNK = {"cpu": 2**16}, 2**20
#: (x (n B, *), t (n B,)) -> tensors (n B, ...)
ChunkFunction = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def as_tensor(value: Any, what: str) -> Tensor:
    """Convert a tensor, an array or nested lists to a tensor, detached from the graph.

    Raises:
        UserError: for values that are not numbers; the message starts with ``what``.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta:
            raise UserError(f"{what}: the tensor is sparse or has no values. Pass a dense tensor.")
        return value.detach()
    try:
        array = np.ma.asarray(value)
        if np.ma.is_masked(array):
            raise ValueError("masked values")
        array = np.asarray(array)
        return torch.tensor(array.astype(array.dtype.newbyteorder("=")))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = shorten(str(error).partition(". ")[0].rstrip("."))
        raise UserError(f"{what}: {reason}. Pass a tensor or an array of numbers.") from None


def expand_like(coefficient: Tensor, x: Tensor) -> Tensor:
    """Reshape a coefficient (B,) or () to broadcast with ``x`` (B, *), in the dtype of ``x``.

    Times and coefficients are float64, because 1 - t loses precision in float32 near t = 1. They
    are only rounded to the precision of the data here. The host never waits for a GPU: (B,) is
    copied asynchronously, and a scalar stays on the CPU, because it is an argument of the kernel.
    """
    if coefficient.ndim > 1:
        raise ValueError(f"expected shape (B,) or (), got {tuple(coefficient.shape)}")
    if not coefficient.ndim:
        return coefficient.to(x.dtype)
    is_queued = x.device.type != "cpu"  # the CPU might read an incomplete copy
    coefficient = coefficient.to(x.device, x.dtype, non_blocking=is_queued)
    return coefficient.reshape(-1, *(1,) * (x.ndim - 1))


def copy_to(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device, through pinned memory if it is a GPU, so that the host does not wait."""
    if device.type == "cpu" or x.device == device:
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def sum_except_batch(x: Tensor) -> Tensor:
    """Sum over all dimensions but the first: (B, *) -> (B,)."""
    return x.flatten(1).sum(1)


def mean_except_batch(x: Tensor) -> Tensor:
    """Average over all dimensions but the first: (B, *) -> (B,)."""
    return x.flatten(1).mean(1)


def standard_normal_log_density(x: Tensor) -> Tensor:
    """Return log N(x; 0, 1) elementwise, in nats: (B, *) -> (B, *)."""
    return -0.5 * (x.square() + math.log(2 * math.pi))


def derivative(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """Return df/dt of an elementwise function at ``t``, with the shape of ``t``.

    Uses reverse mode, because torch's forward mode is not thread-safe.

    >>> derivative(torch.square, torch.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    return torch.func.vjp(function, t)[1](torch.ones_like(t))[0]


@contextmanager
def leaves(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Enable gradients with respect to tensors, even in inference mode.

    Yields tensors that already require gradients, and copies of the other tensors.

    >>> with torch.inference_mode(), leaves(torch.ones(2)) as (x,):
    ...     torch.autograd.grad(x.square().sum(), x)
    (tensor([2., 2.]),)
    """
    is_outer = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        yield [
            x if is_outer and x.requires_grad else x.detach().clone().requires_grad_()
            for x in tensors
        ]


def effective_sample_size(log_weight: Tensor) -> Tensor:
    """Return (sum w)^2 / sum w^2, between 1 and N, for log weights (N,)."""
    return torch.exp(2 * torch.logsumexp(log_weight, 0) - torch.logsumexp(2 * log_weight, 0))


def standard_error(values: Tensor) -> Tensor:
    """Return the standard error of the mean of independent values (N,), N >= 2."""
    return values.double().std(unbiased=True) / math.sqrt(values.numel())


def rows_per_call(x: Tensor) -> int:
    """Return the max number of points like ``x[0]`` per network call, for x (B, *)."""
    return max(1, CHUNK_SIZES.get(x.device.type, LARGE_CHUNK) // max(1, x[:1].numel()))


def evaluate_in_chunks(function: ChunkFunction, points: Tensor, times: Tensor) -> list[Tensor]:
    """Evaluate a function of (x, t) in network calls of limited size.

    Args:
        points: (m, B, *). times: (m,) float64, one per row of ``points``.

    Returns:
        Tensors (m, B, ...).
    """
    num = points.shape[1]
    size = max(1, rows_per_call(points[0]) // max(1, num))
    outputs = [
        function(x.flatten(0, 1), t.repeat_interleave(num))
        for x, t in zip(points.split(size), copy_to(times, points.device).split(size), strict=True)
    ]
    columns = zip(*outputs, strict=True)
    return [torch.cat(column).unflatten(0, (len(points), num)) for column in columns]
