r"""Annealing temperatures t_0 < ... < t_K, the times of a path whose p_t the chains visit.

Their spacing decides how far apart neighbouring distributions are, and so how far the chains lag
behind at each.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.paths import GaussianPath
from ebm_app.paths.clocks import CLOCKS


def linear(path: GaussianPath, start: float, end: float, num_points: int) -> Tensor:
    """Evenly spaced in t, as in the paper (appendix F.6)."""
    return torch.linspace(start, end, num_points, dtype=torch.float64)


#: name -> times (num_points,) float64, the ends included
SCHEDULES: dict[str, Callable[[GaussianPath, float, float, int], Tensor]] = {
    **{name: clock.grid for name, clock in CLOCKS.items()},
    "linear": linear,
}


def temperatures(
    name: str, path: GaussianPath, start: float, end: float, num_temperatures: int
) -> Tensor:
    """The times (num_temperatures + 1,) of a schedule, ``start`` and ``end`` included.

    >>> from ebm_app.paths import LinearVPPath
    >>> temperatures("linear", LinearVPPath(), 0.0, 1.0, 4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]

    Raises:
        UserError: for an unknown schedule, or fewer than one temperature.
    """
    choose("schedule", name, SCHEDULES)
    if num_temperatures < 1:
        raise UserError(f"annealing needs at least 1 temperature, not {num_temperatures}")
    return SCHEDULES[name](path, start, end, num_temperatures + 1)
