r"""Ladders of times t_0 < ... < t_K between a reference and a target.

How they are spaced decides how far apart neighbouring densities are, and so how much a chain has
to catch up with at each level.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.paths import GaussianPath
from ebm_app.probability_flow.ode import clock_grid
from ebm_app.registry import choose

SIGMOID_WIDTH = 4.0


def linear(path: GaussianPath, start: float, end: float, num_points: int) -> Tensor:
    """Evenly spaced in t, as in the paper (appendix F.6)."""
    return torch.linspace(start, end, num_points, dtype=torch.float64)


def sigmoid(path: GaussianPath, start: float, end: float, num_points: int) -> Tensor:
    """t = start + (end - start) (s(u) - s(-4)) / (s(4) - s(-4)), s the logistic function and u
    evenly spaced on [-4, 4]: dense at both ends (Wu et al. 2017, arXiv:1611.04273, section 2)."""
    u = torch.linspace(-SIGMOID_WIDTH, SIGMOID_WIDTH, num_points, dtype=torch.float64)
    share = torch.sigmoid(u)
    return start + (end - start) * (share - share[0]) / (share[-1] - share[0])


#: name -> times (num_points,) float64, the ends included
SCHEDULES: dict[str, Callable[[GaussianPath, float, float, int], Tensor]] = {
    "clock": clock_grid,
    "sigmoid": sigmoid,
    "linear": linear,
}


def ladder(name: str, path: GaussianPath, start: float, end: float, num_levels: int) -> Tensor:
    """The times (num_levels + 1,) of a schedule, ``start`` and ``end`` included.

    Raises:
        UserError: for an unknown schedule, or fewer than one level.
    """
    choose("schedule", name, SCHEDULES)
    if num_levels < 1:
        raise UserError(f"a ladder needs at least 1 level, not {num_levels}")
    return SCHEDULES[name](path, start, end, num_levels + 1)
