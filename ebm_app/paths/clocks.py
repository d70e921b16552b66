"""Clocks of a path: growing functions of the time, in which a flow takes even steps."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.numerics.tensors import slope
from ebm_app.paths import GaussianPath


class Clock(ABC):
    """A reading tau(t) of times, all float64; ``note`` says of what."""

    note: ClassVar[str]

    @abstractmethod
    def reading(self, path: GaussianPath, t: Tensor) -> Tensor:
        """tau(t): (B,) -> (B,)."""

    @abstractmethod
    def time(self, path: GaussianPath, reading: Tensor) -> Tensor:
        """The times of readings: (B,) -> (B,)."""

    @abstractmethod
    def rate(self, path: GaussianPath, t: Tensor) -> Tensor:
        """d tau / dt: (B,) -> (B,)."""

    def ends(self, path: GaussianPath, start: float, end: float) -> tuple[float, float]:
        """The readings at two times.

        Raises:
            UserError: where one of them is infinite.
        """
        first, last = self.reading(path, torch.tensor([start, end], dtype=torch.float64)).tolist()
        for t, reading in ((start, first), (end, last)):
            if not math.isfinite(reading):
                raise UserError(
                    f"{self.note} is infinite at t = {t}: start later, end earlier or take "
                    "another schedule"
                )
        return first, last

    def grid(self, path: GaussianPath, start: float, end: float, num_points: int) -> Tensor:
        """``num_points`` times from ``start`` to ``end``, whose readings are evenly spaced.

        >>> from ebm_app.paths import LinearVPPath
        >>> times = LOG_SNR.grid(LinearVPPath(), 0.1, 0.9, 5)
        >>> round(LOG_SNR.reading(LinearVPPath(), times).diff().std().item(), 12)
        0.0

        Raises:
            UserError: as ``ends``.
        """
        first, last = self.ends(path, start, end)
        times = self.time(path, torch.linspace(first, last, num_points, dtype=torch.float64))
        times[0], times[-1] = start, end
        return times


class ArcLengthClock(Clock):
    """The Fisher-Rao arc length of the path, in which time and Stein score are smooth at both
    ends."""

    note = "the arc length of the path"

    def reading(self, path: GaussianPath, t: Tensor) -> Tensor:
        return path.clock(t)

    def time(self, path: GaussianPath, reading: Tensor) -> Tensor:
        return path.clock_inverse(reading)

    def rate(self, path: GaussianPath, t: Tensor) -> Tensor:
        return path.time_score_variance(t).sqrt()


class LogSNRClock(Clock):
    """The log signal-to-noise ratio of the path, which dwells where the noise still hides what an
    image shows; -inf where alpha is 0."""

    note = "the log signal-to-noise ratio"

    def reading(self, path: GaussianPath, t: Tensor) -> Tensor:
        return path.log_snr(t)

    def time(self, path: GaussianPath, reading: Tensor) -> Tensor:
        return path.log_snr_inverse(reading)

    def rate(self, path: GaussianPath, t: Tensor) -> Tensor:
        return slope(path.log_snr, t)


ARC_LENGTH, LOG_SNR = ArcLengthClock(), LogSNRClock()
#: clocks by the name of a sampler's setting
CLOCKS: dict[str, Clock] = {"clock": ARC_LENGTH, "log_snr": LOG_SNR}
