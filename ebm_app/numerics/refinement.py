"""Solving an ODE in finer and finer steps until its solution has settled."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: (points (B, *), level k) -> the solution (K, B) float64 by 2^k times as many steps, and the
#: evaluations of the network in it for each point
Solve = Callable[[Tensor, int], tuple[Tensor, int]]


class Refined(NamedTuple):
    """The finest solution (K, B) of each point, the estimate (B,) of its error, unknown (NaN)
    after a single solve, and the evaluations of the network for one point, on average."""

    value: Tensor
    error: Tensor
    nfe: int


def refine(solve: Solve, x: Tensor, tolerance: float, max_refinements: int) -> Refined:
    """Solve for ``x`` (B, *) with 1, 2, 4, ... times as many steps, each point until the error of
    its mean over K, a third of the last change, is below ``tolerance`` times D.

    A third is the error of a method of second order; of one of higher order it is an upper bound.
    """
    value, cost = solve(x, 0)
    total, size = cost * len(x), x[0].numel()
    error = torch.full_like(value[0], torch.nan)
    open_points = torch.arange(len(x), device=x.device)
    for level in range(1, max_refinements + 1):
        finer, cost = solve(x[open_points], level)
        total += cost * len(open_points)
        error[open_points] = (finer - value[:, open_points]).mean(0).abs() / 3
        value[:, open_points] = finer
        open_points = open_points[error[open_points] > tolerance * size]
        if not len(open_points):
            break
    return Refined(value, error, round(total / max(1, len(x))))
