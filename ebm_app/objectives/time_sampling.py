"""Drawing training times t on [t0, t1].

Conditional regression takes a sampler's density as part of its effective weighting (paper,
section 5); an objective that needs the plain integral over t divides by it. Hence every draw comes
with ``weight``: the uniform density on [t0, t1] over the sampler's own.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.paths.schedules import ARC_LENGTH


class TimeSample(NamedTuple):
    """Times (B,) and importance weights (B,) that make averages those of uniform times;
    float64."""

    t: Tensor
    weight: Tensor


def uniform_numbers(num: int, generator: torch.Generator) -> Tensor:
    """Independent uniform numbers (num,) in [0, 1), float64."""
    return torch.rand(num, dtype=torch.float64, device=generator.device, generator=generator)


def stratified_numbers(num: int, generator: torch.Generator) -> Tensor:
    """(u + i / num) mod 1 with one uniform u: each uniform, evenly spread together.

    Source: Kingma et al. 2021, arXiv:2107.00630, appendix I.1.
    """
    offset = torch.rand((), dtype=torch.float64, device=generator.device, generator=generator)
    grid = torch.arange(num, dtype=torch.float64, device=generator.device) / num
    return (grid + offset) % 1


class TimeSampler(ABC):
    """Draws times by an inverse distribution function applied to uniform or stratified numbers.

    Args:
        path, eps: the path and the margin left at its degenerate ends.
    """

    numbers = staticmethod(stratified_numbers)

    def __init__(self, path: GaussianPath, eps: float) -> None:
        self.path = path
        self.start, self.end = path.interval(eps)

    @abstractmethod
    def transform(self, u: Tensor) -> TimeSample:
        """Map uniform numbers (B,) to times."""

    def sample(self, num: int, generator: torch.Generator) -> TimeSample:
        """``num`` times on [t0, t1]."""
        return self.transform(self.numbers(num, generator))

    def between(self, share: Tensor) -> Tensor:
        """The time at a share (B,) of the way from t0 to t1, never beyond them by rounding."""
        t = self.start + (self.end - self.start) * share
        return t.clamp(self.start, self.end)


class UniformTime(TimeSampler):
    """Uniform on [t0, t1], independent."""

    numbers = staticmethod(uniform_numbers)

    def transform(self, u: Tensor) -> TimeSample:
        return TimeSample(self.between(u), torch.ones_like(u))


class ImportanceSampler(TimeSampler):
    """The paper's heuristic (appendix C.1): density proportional to (1 + r^2) / (1 - r^2)^2.

    r = 2yZ / (sqrt(1 + 4 y^2 Z^2) + 1) with Z = r1 / (1 - r1^2) inverts its distribution function
    on [0, r1], r1 = 0.9, and r is rescaled to [t0, t1].
    """

    numbers = staticmethod(uniform_numbers)
    r1 = 0.9

    def transform(self, u: Tensor) -> TimeSample:
        z = self.r1 / (1 - self.r1**2)
        r = 2 * u * z / ((1 + (2 * u * z).square()).sqrt() + 1)
        density = (1 + r.square()) / (1 - r.square()).square() / z * self.r1
        return TimeSample(self.between(r / self.r1), 1 / density)


class ArcLength(TimeSampler):
    """Uniform in the Fisher-Rao clock of the path, evenly spread within a batch.

    The inverse clock is tabulated at 2,049 knots and interpolated linearly in t, which is good at
    a regular end (t = 0 of a one-sided path) and, because a cell is short against the clock's
    unit, at a singular one. The weight is that of the table: averages are unbiased whatever its
    error.

    Raises:
        UserError: where the clock is infinite at an end, which ``eps`` has to leave out.
    """

    num_knots = 2049

    def __init__(self, path: GaussianPath, eps: float) -> None:
        super().__init__(path, eps)
        self.knots = ARC_LENGTH.times(path, self.start, self.end, self.num_knots - 1)

    def transform(self, u: Tensor) -> TimeSample:
        position = u * (self.num_knots - 1)
        index = position.long().clamp_max(self.num_knots - 2)
        knots = self.knots.to(u.device)
        left, right = knots[index], knots[index + 1]
        weight = (right - left) * (self.num_knots - 1) / (self.end - self.start)
        return TimeSample(torch.lerp(left, right, position - index), weight)


class EarlyTimes(ArcLength):
    """Uniform in the log signal-to-noise ratio (``GaussianPath.log_snr``), evenly spread within a
    batch, from -8 to that at which an early network ends; averages are those of uniform times
    between the two.

    Args:
        path, eps: as for ``TimeSampler``. highest: log signal-to-noise ratio of the last time.
    """

    lowest = -8.0

    def __init__(self, path: GaussianPath, eps: float, highest: float = 0.0) -> None:
        self.path = path
        ratios = torch.linspace(self.lowest, highest, self.num_knots, dtype=torch.float64)
        self.knots = path.log_snr_inverse(ratios).clamp(*path.interval(eps))
        self.start, self.end = self.knots[0].item(), self.knots[-1].item()


class SharedTimes(UniformTime):
    """Uniform, a few times that are evenly spread, each for a run of rows: what is costly to make
    for a time is made seldom.

    Args:
        path, eps: as for ``TimeSampler``. num_times: it must divide the number of rows.
    """

    numbers = staticmethod(stratified_numbers)

    def __init__(self, path: GaussianPath, eps: float, num_times: int) -> None:
        super().__init__(path, eps)
        self.num_times = num_times

    def sample(self, num: int, generator: torch.Generator) -> TimeSample:
        times = super().sample(self.num_times, generator)
        return TimeSample(*(part.repeat_interleave(num // self.num_times) for part in times))


TIME_SAMPLERS: dict[str, type[TimeSampler]] = {
    "uniform": UniformTime,
    "importance": ImportanceSampler,
    "arc_length": ArcLength,
    "early": EarlyTimes,
}
