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
from ebm_app.paths.one_sided import require_one_sided
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import renamed
from ebm_app.utils.tensors import derivative


class Schedule(NamedTuple):
    """An increasing function of time on a path.

    Attributes:
        quantity: what tau is, for messages.
        tau: (path, times (B,)) -> (B,) float64.
    """

    quantity: str
    tau: Callable[[GaussianPath, Tensor], Tensor]

    def rate(self, path: GaussianPath, t: Tensor) -> Tensor:
        """Return d tau / dt: (B,) -> (B,)."""
        return derivative(partial(self.tau, path), t)

    def times(self, path: GaussianPath, start: float, end: float, num_steps: int) -> Tensor:
        """Return the times (num_steps + 1,) float64 from ``start`` to ``end``, both included.

        >>> from ebm_app.paths import LinearVPPath
        >>> SCHEDULES["linear"].times(LinearVPPath(), 0.0, 1.0, 4).round(decimals=12).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]

        Raises:
            UserError: where tau is infinite at an end.
        """
        ends = self.tau(path, torch.tensor([start, end], dtype=torch.float64))
        for t, value in zip((start, end), ends, strict=True):
            if not value.isfinite():
                raise UserError(
                    f"The {self.quantity} is infinite at t = {t}. Start later, end earlier or use "
                    "another schedule."
                )
        values = torch.linspace(*ends.tolist(), num_steps + 1, dtype=torch.float64)
        times = invert(partial(self.tau, path), values)
        times[0], times[-1] = start, end
        return times


#: Fisher-Rao arc length: time score and Stein score are smooth in it at both ends
ARC_LENGTH = Schedule("arc length of the path", lambda path, t: path.arc_length(t))
#: Puts more steps at the noise levels where the content of an image is decided
LOG_SNR = Schedule("log signal-to-noise ratio", lambda path, t: require_one_sided(path).log_snr(t))
#: Evenly spaced in t, as in the paper (appendix F.6)
LINEAR = Schedule("time", lambda path, t: t)

SCHEDULES = {"arc_length": ARC_LENGTH, "log_snr": LOG_SNR, "linear": LINEAR}
#: Name of a schedule; "clock" is the old name of "arc_length"
ScheduleName = renamed(clock="arc_length")
