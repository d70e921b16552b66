"""Sampling by the probability-flow ODE."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.io.fields import Fraction, Positive, Steps, configuration
from ebm_app.io.registry import choose
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths.probability_flow import ProbabilityFlow
from ebm_app.paths.schedules import SCHEDULES
from ebm_app.sampling.base import Frame, Sampler, denoised, end_time


@configuration
class PFODESampler(Sampler):
    """The probability-flow ODE, then one denoising step (Tweedie's formula) from where it stops.

    Args:
        num_steps: steps, each of two evaluations of the Stein score by "heun", of four by "rk4".
        solver: "heun" or "rk4".
        schedule: in which the steps are even, a key of ``SCHEDULES``.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        end_variance: conditional variance at which the flow stops and the image is denoised.

    >>> PFODESampler(num_steps=12, solver="rk4").schedule
    'log_snr'
    """

    note: ClassVar[str] = "the probability-flow ODE from noise, then one denoising step"
    steps: ClassVar[str] = "steps of the ODE"
    counts: ClassVar[str] = "num_steps"

    num_steps: Steps = 25
    solver: str = "heun"
    schedule: str = "log_snr"
    score: str | None = None
    start: Fraction = 1e-2
    end_variance: Positive = 1e-3

    def iterate(
        self, energy: TimeScoreEnergy, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        score, path = energy.stein_score(self.score), energy.path
        schedule = SCHEDULES[choose("schedule", self.schedule, SCHEDULES)]
        end = end_time(energy, self.start, self.end_variance)
        flow = ProbabilityFlow(score, path, schedule)
        for state in flow.solve(x0, self.start, end, self.solver, self.num_steps):
            if state.step < state.num_steps:
                yield Frame(state.x, state.step, state.num_steps, state.nfe)
        with torch.no_grad():
            x = denoised(energy, state.x, score(state.x, end), end)
        yield Frame(x, state.num_steps, state.num_steps, state.nfe + 1)

    def count_steps(self, energy: TimeScoreEnergy, num_dims: int) -> int:
        return self.num_steps
