"""Samplers of training times t on [t0, t1].

In a conditional regression the density of the times is part of the effective weighting (paper,
section 5). An objective that estimates the plain integral over t divides by this density, so
every draw comes with an importance ``weight``: the uniform density on [t0, t1] over the sampler's.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.paths.base import ARC_LENGTH


class TimeSample(NamedTuple):
    """Times (B,) and importance weights (B,), float64. Weighted averages are averages over uniform
    times."""

    t: Tensor
    weight: Tensor


class TimeSampler(ABC):
    """Sampler of times, by an inverse distribution function of uniform numbers.

    Args:
        path: the path.
        t_margin: margin left at the degenerate ends of the path.

    Attributes:
        is_stratified: whether the n numbers are (u + i / n) mod 1 for one uniform u (Kingma et al.
            2021, arXiv:2107.00630, appendix I.1), or independent.
    """

    is_stratified = True

    def __init__(self, path: GaussianPath, t_margin: float) -> None:
        self.path = path
        self.start, self.end = path.interval(t_margin)

    @abstractmethod
    def transform(self, u: Tensor) -> TimeSample:
        """Map uniform numbers (B,) to times."""

    def sample(self, num: int, generator: torch.Generator) -> TimeSample:
        """Draw ``num`` times on [t0, t1]."""
        options = {"dtype": torch.float64, "device": generator.device}
        if not self.is_stratified:
            return self.transform(torch.rand(num, generator=generator, **options))
        offset = torch.rand((), generator=generator, **options)
        return self.transform((torch.arange(num, **options) / num + offset) % 1)

    def interpolate(self, fraction: Tensor) -> Tensor:
        """Return t0 + fraction (t1 - t0) for fractions (B,), clamped to [t0, t1] against
        rounding."""
        t = self.start + (self.end - self.start) * fraction
        return t.clamp(self.start, self.end)


class UniformTime(TimeSampler):
    """Independent times, uniform on [t0, t1]."""

    is_stratified = False

    def transform(self, u: Tensor) -> TimeSample:
        return TimeSample(self.interpolate(u), torch.ones_like(u))


class ImportanceSampler(TimeSampler):
    """Independent times by the paper's heuristic (appendix C.1): density proportional to
    (1 + r^2) / (1 - r^2)^2.

    Its distribution function on [0, r1], r1 = 0.9, has the inverse r = 2uZ / (sqrt(1 + 4 u^2 Z^2)
    + 1) with Z = r1 / (1 - r1^2). The interval [0, r1] is rescaled to [t0, t1].
    """

    is_stratified = False
    r1 = 0.9

    def transform(self, u: Tensor) -> TimeSample:
        z = self.r1 / (1 - self.r1**2)
        r = 2 * u * z / ((1 + (2 * u * z).square()).sqrt() + 1)
        density = (1 + r.square()) / (1 - r.square()).square() / z * self.r1
        return TimeSample(self.interpolate(r / self.r1), 1 / density)


class ArcLength(TimeSampler):
    """Stratified times, uniform in the arc length of the path.

    The inverse arc length is tabulated at 2,049 knots and interpolated linearly in t. This is
    accurate at a regular end (t = 0 of a one-sided path), and at a singular end because one cell
    of the table is short in arc length. The weights are those of the table, so its error does not
    bias averages.
    """

    num_knots = 2049

    def __init__(self, path: GaussianPath, t_margin: float) -> None:
        super().__init__(path, t_margin)
        self.knots = ARC_LENGTH.times(path, self.start, self.end, self.num_knots - 1)

    def transform(self, u: Tensor) -> TimeSample:
        position = u * (self.num_knots - 1)
        index = position.long().clamp_max(self.num_knots - 2)
        knots = self.knots.to(u.device)
        left, right = knots[index], knots[index + 1]
        weight = (right - left) * (self.num_knots - 1) / (self.end - self.start)
        return TimeSample(torch.lerp(left, right, position - index), weight)


class SharedTimes(UniformTime):
    """A few stratified uniform times, each shared by consecutive rows, to amortise per-time cost.

    Args:
        path, t_margin: as for ``TimeSampler``.
        num_times: number of distinct times; it must divide the number of rows.
    """

    is_stratified = True

    def __init__(self, path: GaussianPath, t_margin: float, num_times: int) -> None:
        super().__init__(path, t_margin)
        self.num_times = num_times

    def sample(self, num: int, generator: torch.Generator) -> TimeSample:
        times = super().sample(self.num_times, generator)
        return TimeSample(*(column.repeat_interleave(num // self.num_times) for column in times))


#: Time samplers by name
TIME_SAMPLERS: dict[str, type[TimeSampler]] = {
    "uniform": UniformTime,
    "importance": ImportanceSampler,
    "arc_length": ArcLength,
}
