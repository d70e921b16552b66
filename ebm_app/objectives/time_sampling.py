"""Drawing training times t on [t0, t1].

Conditional regression takes a sampler's density as part of its effective weighting (paper,
section 5); an objective that needs the plain integral over t divides by it. Hence every draw comes
with ``weight``: the uniform density on [t0, t1] over the sampler's own.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.paths import GaussianPath


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
    learns = False

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

    def update(self, t: Tensor, loss: Tensor) -> None:  # noqa: B027 - a hook, not an omission
        """Learn from the losses (B,) seen at times (B,); most samplers have nothing to learn."""

    def state(self) -> dict[str, Tensor]:
        """What ``update`` has learned, to be saved with a checkpoint."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}")


class Stratified(TimeSampler):
    """Uniform on [t0, t1], evenly spread within a batch."""

    def transform(self, u: Tensor) -> TimeSample:
        return TimeSample(self.between(u), torch.ones_like(u))


class UniformTime(Stratified):
    """Uniform on [t0, t1], independent."""

    numbers = staticmethod(uniform_numbers)


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
        ends = path.clock(torch.tensor([self.start, self.end], dtype=torch.float64))
        self.total = (ends[1] - ends[0]).item()
        if not math.isfinite(self.total):
            raise UserError(
                f"the clock of {type(path).__name__} is infinite between t = {self.start} and "
                f"{self.end}: use eps > 0"
            )
        middle = ends[0] + self.total * torch.linspace(0, 1, self.num_knots, dtype=torch.float64)
        self.knots = path.clock_inverse(middle)
        self.knots[0], self.knots[-1] = self.start, self.end

    def transform(self, u: Tensor) -> TimeSample:
        position = u * (self.num_knots - 1)
        index = position.long().clamp_max(self.num_knots - 2)
        knots = self.knots.to(u.device)
        left, right = knots[index], knots[index + 1]
        weight = (right - left) * (self.num_knots - 1) / (self.end - self.start)
        return TimeSample(torch.lerp(left, right, position - index), weight)


class LossHistory(TimeSampler):
    """Density proportional to the root mean square loss seen lately around t, mixed with uniform.

    The baseline's importance weighting: a history of squared losses is kept on a grid of times and
    interpolated linearly. Sources: Nichol and Dhariwal 2021, arXiv:2102.09672, section 3.3; Choi
    et al. 2022, arXiv:2111.11010, with a buffer of 100.
    """

    numbers = staticmethod(uniform_numbers)
    learns = True
    num_knots, decay, floor = 100, 0.99, 0.05

    def __init__(self, path: GaussianPath, eps: float) -> None:
        super().__init__(path, eps)
        self.squares = torch.zeros(self.num_knots, dtype=torch.float64)
        self.counts = torch.zeros(self.num_knots, dtype=torch.float64)

    def density(self) -> Tensor:
        """Density at the knots relative to uniform on [0, 1]: (num_knots,), mean one by
        trapezoids.

        Uniform until every knot has been seen, and where no loss at all is left.
        """
        if (self.counts == 0).any() or not self.squares.any():
            return torch.ones_like(self.squares)
        root = (self.squares / self.counts).sqrt()
        return self.floor + (1 - self.floor) * root / ((root[1:] + root[:-1]) / 2).mean()

    def transform(self, u: Tensor) -> TimeSample:
        knots = self.density().to(u.device)
        cells = (knots[1:] + knots[:-1]) / 2 / (self.num_knots - 1)
        edges = torch.cat([torch.zeros_like(cells[:1]), cells.cumsum(0)])
        index = (torch.searchsorted(edges, u, right=True) - 1).clamp(0, self.num_knots - 2)
        left, slope = knots[index], knots[index + 1] - knots[index]
        mass = (u - edges[index]) * (self.num_knots - 1)
        # within a cell, mass = left r + slope r^2 / 2; this root has no cancellation at slope 0
        r = 2 * mass / (left + (left.square() + 2 * slope * mass).clamp_min(0).sqrt())
        t = self.between((index + r) / (self.num_knots - 1))
        return TimeSample(t, 1 / (left + slope * r))

    def update(self, t: Tensor, loss: Tensor) -> None:
        position = (t - self.start) / (self.end - self.start) * (self.num_knots - 1)
        index = position.round().long().cpu()
        square = loss.detach().double().square().cpu()
        self.squares = self.decay * self.squares + torch.zeros_like(self.squares).index_add(
            0, index, square
        )
        self.counts = self.decay * self.counts + torch.zeros_like(self.counts).index_add(
            0, index, torch.ones_like(square)
        )

    def state(self) -> dict[str, Tensor]:
        return {"squares": self.squares, "counts": self.counts}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.squares, self.counts = state["squares"], state["counts"]


class SharedTimes(TimeSampler):
    """A few times, each for a run of rows: what is costly to make for a time is made seldom.

    Args:
        base: draws the times. num_times: how many; it must divide the number of rows.
    """

    def __init__(self, base: TimeSampler, num_times: int) -> None:
        self.base, self.num_times = base, num_times
        self.path, self.start, self.end = base.path, base.start, base.end

    def transform(self, u: Tensor) -> TimeSample:
        return self.base.transform(u)

    def sample(self, num: int, generator: torch.Generator) -> TimeSample:
        if num % self.num_times:
            raise ValueError(f"{self.num_times} times cannot be shared evenly by {num} rows")
        times = self.base.sample(self.num_times, generator)
        return TimeSample(*(part.repeat_interleave(num // self.num_times) for part in times))


TIME_SAMPLERS: dict[str, type[TimeSampler]] = {
    "uniform": UniformTime,
    "stratified": Stratified,
    "importance": ImportanceSampler,
    "arc_length": ArcLength,
    "loss_history": LossHistory,
}
