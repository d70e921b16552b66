"""Schedules: times whose readings of a growing function tau(t) of the path are evenly spaced.

They say where the steps of a probability flow lie, and the temperatures of annealed chains, that
is the times whose p_t the chains visit.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import renamed
from ebm_app.utils.tensors import derivative

Function = Callable[[GaussianPath, Tensor], Tensor]


class Schedule(NamedTuple):
    """tau(t), its inverse and its rate d tau / dt, each (B,) -> (B,) float64; ``note`` says what
    tau is."""

    note: str
    reading: Function
    time: Function
    rate: Function

    def times(self, path: GaussianPath, start: float, end: float, num_steps: int) -> Tensor:
        """The times (num_steps + 1,) float64 from ``start`` to ``end``, both included.

        >>> from ebm_app.paths import LinearVPPath
        >>> SCHEDULES["linear"].times(LinearVPPath(), 0.0, 1.0, 4).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]

        Raises:
            UserError: where the reading of an end is infinite.
        """
        ends = self.reading(path, torch.tensor([start, end], dtype=torch.float64))
        for t, reading in zip((start, end), ends, strict=True):
            if not reading.isfinite():
                raise UserError(
                    f"{self.note} is infinite at t = {t}: start later, end earlier or take "
                    "another schedule"
                )
        even = torch.linspace(*ends.tolist(), num_steps + 1, dtype=torch.float64)
        times = self.time(path, even)
        times[0], times[-1] = start, end
        return times


#: the Fisher-Rao arc length, in which time and Stein score are smooth at both ends
ARC_LENGTH = Schedule(
    "the arc length of the path",
    lambda path, t: path.arc_length(t),
    lambda path, tau: path.arc_length_inverse(tau),
    lambda path, t: path.time_score_variance(t).sqrt(),
)
#: it dwells where the noise still hides what an image shows; -inf where alpha is 0
LOG_SNR = Schedule(
    "the log signal-to-noise ratio",
    lambda path, t: path.log_snr(t),
    lambda path, tau: path.log_snr_inverse(tau),
    lambda path, t: derivative(path.log_snr, t),
)
#: evenly spaced in t, as in the paper (appendix F.6)
LINEAR = Schedule(
    "the time", lambda path, t: t, lambda path, tau: tau, lambda path, t: torch.ones_like(t)
)
#: Name of a schedule; "clock" is the old name of "arc_length"
ScheduleName = renamed(clock="arc_length")
#: Schedules by name
SCHEDULES = {"arc_length": ARC_LENGTH, "log_snr": LOG_SNR, "linear": LINEAR}
