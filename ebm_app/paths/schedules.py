"""Schedules: times at which an increasing function tau(t) of the path is evenly spaced.

A schedule places the steps of a probability flow and the temperatures of annealed chains, which
are the times t of the p_t that the chains visit.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths.base import GaussianPath, invert
from ebm_app.utils.tensors import derivative


class Schedule(NamedTuple):
    """An increasing function ``tau`` of time on a path: (path, times (B,)) -> (B,) float64."""

    tau: Callable[[GaussianPath, Tensor], Tensor]

    def rate(self, path: GaussianPath, t: Tensor) -> Tensor:
        """Return d tau / dt: (B,) -> (B,)."""
        return derivative(partial(self.tau, path), t)

    def times(self, path: GaussianPath, start: float, end: float, num_steps: int) -> Tensor:
        """Return the times (num_steps + 1,) float64 from ``start`` to ``end``, both included, at
        which tau must be finite.

        >>> from ebm_app.paths import LinearVPPath
        >>> SCHEDULES["linear"].times(LinearVPPath(), 0.0, 1.0, 4).round(decimals=12).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        ends = self.tau(path, torch.tensor([start, end], dtype=torch.float64))
        values = torch.linspace(*ends.tolist(), num_steps + 1, dtype=torch.float64)
        times = invert(partial(self.tau, path), values)
        times[0], times[-1] = start, end
        return times


#: Fisher-Rao arc length: time score and Stein score are smooth in it at both ends
ARC_LENGTH = Schedule(lambda path, t: path.arc_length(t))
#: Puts more steps at the noise levels where the content of an image is decided
LOG_SNR = Schedule(lambda path, t: path.log_snr(t))
#: Evenly spaced in t, as in the paper (appendix F.6)
LINEAR = Schedule(lambda path, t: t)

SCHEDULES = {"arc_length": ARC_LENGTH, "log_snr": LOG_SNR, "linear": LINEAR}
