"""Evaluate networks at many points and times, in calls of limited size."""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.nets.protocols import Time

#: Max elements of x per network call. Above 2^16 on a CPU, allocating the activations costs as
#: much as the network.
CHUNK_SIZES, LARGE_CHUNK = {"cpu": 2**16}, 2**20


def expand_time(t: Time, x: Tensor) -> Tensor:
    """Return one time per point of ``x`` (B, *): (B,) float64, on the device of ``x``."""
    return torch.as_tensor(t, dtype=torch.float64, device=x.device).expand(len(x))


def rows_per_call(x: Tensor) -> int:
    """Return the max number of points like those of ``x`` (B, *) in one network call."""
    return max(1, CHUNK_SIZES.get(x.device.type, LARGE_CHUNK) // max(1, x[:1].numel()))


def evaluate_in_chunks(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], points: Tensor, times: Tensor
) -> list[Tensor]:
    """Evaluate a function of many points in network calls of limited size.

    Args:
        function: (x (n B, *), t (n B,)) -> tensors of n B rows.
        points: (m, B, *). times: (m,) float64, one per row of ``points``.

    Returns:
        The tensors, each of shape (m, B, ...).
    """
    num = points.shape[1]
    size = max(1, rows_per_call(points[0]) // max(1, num))
    parts = [
        function(x.flatten(0, 1), t.to(x.device).repeat_interleave(num))
        for x, t in zip(points.split(size), times.split(size), strict=True)
    ]
    columns = zip(*parts, strict=True)
    return [torch.cat(column).unflatten(0, (len(points), num)) for column in columns]
