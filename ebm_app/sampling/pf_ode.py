"""Sampling by the probability-flow ODE."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.nets.protocols import SteinScore
from ebm_app.paths.probability_flow import ProbabilityFlow
from ebm_app.paths.schedules import LOG_SNR
from ebm_app.sampling.base import FlowSampler, Frame, denoised, end_time
from ebm_app.utils.fields import configuration


@configuration
class PFODESampler(FlowSampler):
    """The probability-flow ODE by Heun's method, in steps even in the log signal-to-noise ratio,
    of two evaluations of the Stein score each, then one denoising step (Tweedie's formula) from
    where it stops.

    Args:
        num_steps, start, end_variance: as for ``FlowSampler``.
    """

    note: ClassVar[str] = "the probability-flow ODE from noise, then one denoising step"
    steps: ClassVar[str] = "steps of the ODE"

    def iterate(
        self, energy: SteinScore, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        score, path = energy.score, energy.path
        end = end_time(energy, self.start, self.end_variance)
        flow = ProbabilityFlow(score, path, LOG_SNR)
        for state in flow.solve(x0, self.start, end, "heun", self.num_steps):
            if state.step < self.num_steps:
                yield Frame(state.x, state.step, self.num_steps, state.nfe)
        with torch.no_grad():
            x = denoised(energy, state.x, score(state.x, end), end)
        yield Frame(x, self.num_steps, self.num_steps, state.nfe + 1)
