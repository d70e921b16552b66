"""Annealed Hamiltonian Monte Carlo through the model's own p_t (paper, section 6)."""

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.nets.protocols import LogDensity, SteinScore, require, stein_score
from ebm_app.paths.schedules import SCHEDULES, ScheduleName
from ebm_app.sampling.annealing import IntermediateDistribution, anneal
from ebm_app.sampling.base import Frame, Sampler, denoised, end_time
from ebm_app.sampling.hmc import ACCEPTANCES, Target, adapt
from ebm_app.utils.fields import (
    Count,
    Fraction,
    Nodes,
    Positive,
    PositiveInt,
    Steps,
    configuration,
)
from ebm_app.utils.registry import choose

#: the mean acceptance that the leapfrog step is adapted to
TARGET = 0.75


@configuration
class AnnealedHMC(Sampler):
    """HMC from N(0, I) through the model's p_t, then one denoising step.

    Neighbouring p_t overlap where their number grows with the square root of the dimension D times
    the length of the arc length. The leapfrog step is a share of the noise's deviation at every
    temperature; it follows the acceptance until the last temperature, where it is frozen.

    The paper's setting: ``num_temperatures=1000 schedule=linear score=integral acceptance=energy``
    (appendix F.6).

    Args:
        num_temperatures: how many p_t; None for 1.3 sqrt(D) times the length of the arc length.
        schedule: their spacing, a key of ``SCHEDULES``.
        steps_per_temperature, num_leapfrog_steps: transitions at a temperature, leapfrog steps of
            each. final_steps: further transitions at the last temperature.
        step_size: first leapfrog step, and the largest, in standard deviations of the noise.
        score: what drives the leapfrog, the model's "head" or the gradient of the "integral"; None
            takes the head where there is one.
        acceptance: what decides, the "work" of the score along a trajectory, the "energy", that is
            the integral of the time score, or "none", which takes every proposal.
        num_nodes: quadrature nodes of the integrals.
        start: time of the first temperature; it starts from N(0, I).
        end_variance: conditional variance at the last temperature, from where the image is
            denoised.
    """

    note: ClassVar[str] = (
        "annealed Hamiltonian Monte Carlo from noise through the model's p_t, then one denoising "
        "step"
    )
    steps: ClassVar[str] = "temperatures"
    counts: ClassVar[str] = "num_temperatures"

    num_temperatures: Steps | None = None
    schedule: ScheduleName = "arc_length"
    steps_per_temperature: PositiveInt = 1
    num_leapfrog_steps: PositiveInt = 4
    final_steps: Count = 5
    step_size: Positive = 0.5
    score: str | None = None
    acceptance: str = "work"
    num_nodes: Nodes = 8
    start: Fraction = 1e-3
    end_variance: Positive = 1e-3

    def iterate(
        self, energy: SteinScore, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        times = self._times(energy, x0[0].numel())
        choose("acceptance", self.acceptance, ACCEPTANCES)
        records = anneal(
            x0,
            self._distributions(energy, times),
            self.num_leapfrog_steps,
            generator,
            self.step_size,
            self.acceptance,
        )
        nfe = 0
        for done, record in enumerate(records, 1):
            nfe, x = nfe + record.nfe, record.state.position
            if done == len(times):
                x = denoised(energy, x, record.state.gradient, times[-1].item())
            yield Frame(x, done, len(times), nfe, record.acceptance)

    def count_steps(self, energy: SteinScore, num_dims: int) -> int:
        return len(self._times(energy, num_dims))

    def _follow(self, scale: Tensor, probability: Tensor) -> Tensor:
        """The next share of the noise's deviation, at most ``step_size``."""
        return adapt(scale, probability, TARGET).clamp(max=self.step_size)

    def _distributions(self, energy: SteinScore, times: Tensor) -> list[IntermediateDistribution]:
        if isinstance(energy, LogDensity):
            energy = energy.with_nodes(self.num_nodes)
        score, found = stein_score(energy, self.score), []

        def log_density(x: Tensor) -> Tensor:
            return x.new_zeros(len(x), dtype=torch.float64)  # which the accept step does not read

        for t, deviation in zip(times.tolist(), energy.path.variance(times).sqrt(), strict=True):
            is_last = t == times[-1]
            if self.acceptance == "energy":
                exact = require(energy, LogDensity, "acceptance=energy")
                log_density = partial(exact.log_density, t=t)
            found.append(
                IntermediateDistribution(
                    Target(log_density, partial(score, t=t)),
                    deviation,
                    self.steps_per_temperature + (self.final_steps if is_last else 0),
                    adapt=None if is_last else self._follow,
                )
            )
        return found

    def _times(self, energy: SteinScore, num_dims: int) -> Tensor:
        start = max(self.start, energy.start)
        end = end_time(energy, start, self.end_variance)
        num = self.num_temperatures
        if num is None:
            first, last = energy.path.arc_length(torch.tensor([start, end], dtype=torch.float64))
            num = math.ceil(1.3 * math.sqrt(num_dims) * (last - first).item())
        schedule = SCHEDULES[choose("schedule", self.schedule, SCHEDULES)]
        return schedule.times(energy.path, start, end, num)[1:]
