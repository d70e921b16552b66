"""Drawing from an energy-based model, by the name that ``--sampler`` takes.

A sampler starts from N(0, I) and yields frames, so that a caller can show progress and stop. Both
need a Stein score: the model's head, or the gradient of the time integral.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.models.energy import INTEGRAL, TimeScoreEnergy
from ebm_app.numerics import find_time
from ebm_app.probability_flow.ode import ClockField, solve_pf_ode
from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.hmc import Target
from ebm_app.sampling.schedules import temperatures


class Frame(NamedTuple):
    """Points (B, *) in the space of the path after ``step`` of ``num_steps`` steps; ``nfe`` counts
    evaluations of the Stein score; ``acceptance`` is that at the last temperature, or None."""

    x: Tensor
    step: int
    num_steps: int
    nfe: int
    acceptance: float | None = None


class Sampler(ABC):
    """Draws from p_1 of an energy; a subclass is a frozen dataclass of its settings. ``note`` says
    in one sentence how it draws, ``steps`` what its ``num_steps`` count."""

    note: ClassVar[str]
    steps: ClassVar[str]

    @abstractmethod
    def iterate(
        self, energy: TimeScoreEnergy, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        """Frames from the reference draws ``x0`` (B, *) to the samples, which are the last
        frame."""


@dataclass(frozen=True)
class PFODESampler(Sampler):
    """The probability-flow ODE, then one denoising step (Tweedie's formula) from where it stops.

    Args:
        num_steps: steps, each of two evaluations of the Stein score by "heun", of four by "rk4".
        solver: "heun", "rk4", or the adaptive "dopri5", which finds its own number of steps.
        tolerance: rtol and atol of an adaptive solver.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        end_variance: conditional variance at which the flow stops and the image is denoised.

    >>> PFODESampler(num_steps=12, solver="rk4").tolerance
    1e-05
    """

    note: ClassVar[str] = "the probability-flow ODE from noise, then one denoising step"
    steps: ClassVar[str] = "steps of the ODE"

    num_steps: int = 25
    solver: str = "heun"
    tolerance: float = 1e-5
    score: str | None = None
    start: float = 1e-3
    end_variance: float = 1e-3

    def iterate(
        self, energy: TimeScoreEnergy, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        score, path = energy.stein_score(self.score), energy.path
        end = _time_of_variance(energy, self.end_variance)
        if not self.start < end:
            raise UserError(f"the flow must start before t = {end}, where it stops: lower start")
        states = solve_pf_ode(
            ClockField(score, path),
            x0,
            self.start,
            end,
            self.solver,
            self.num_steps,
            self.tolerance,
        )
        for state in states:
            if state.step < state.num_steps:
                yield Frame(state.x, state.step, state.num_steps, state.nfe)
        t = torch.tensor(end, dtype=torch.float64)
        with torch.no_grad():
            denoised = path.denoise(state.x, score(state.x, end), t)
        yield Frame(denoised, state.num_steps, state.num_steps, state.nfe + 1)


@dataclass(frozen=True)
class AnnealedHMCSampler(Sampler):
    """HMC through the model's own p_t (paper, section 6). Pilot chains, one temperature ahead of
    the others, find the step sizes.

    The Stein score drives the leapfrog and the energy decides on acceptance, so that the
    transitions leave p_t invariant whichever score drives them.

    Args:
        num_steps: temperatures. schedule: their spacing, a key of ``SCHEDULES``.
        steps_per_temperature, num_leapfrog_steps: HMC transitions at a temperature, leapfrog steps
            of each.
        final_steps: further HMC transitions at the last temperature.
        pilot_size: pilot chains.
        score: "integral" or "head". The gradient of the integral, by few nodes too, belongs to the
            energy; a trained head differs from it, and needs far smaller steps to be accepted.
        num_nodes: quadrature nodes of the energy that decides on acceptance.
        score_nodes: nodes of the integral whose gradient drives the leapfrog.
        end_variance: conditional variance at the last temperature.
    """

    note: ClassVar[str] = "annealed Hamiltonian Monte Carlo from noise through the model's p_t"
    steps: ClassVar[str] = "temperatures"

    num_steps: int = 20
    schedule: str = "clock"
    steps_per_temperature: int = 2
    num_leapfrog_steps: int = 5
    final_steps: int = 5
    pilot_size: int = 4
    score: str = INTEGRAL
    num_nodes: int = 8
    score_nodes: int = 4
    end_variance: float = 1e-3

    def iterate(
        self, energy: TimeScoreEnergy, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        times = self._times(energy)
        score = energy.with_nodes(self.score_nodes).stein_score(self.score)
        energy = energy.with_nodes(self.num_nodes)
        targets = [
            Target(partial(energy.proposal_log_density, t=t), partial(score, t=t))
            for t in times.tolist()
        ]
        deviations = energy.path.variance(times).sqrt()
        annealed = AnnealedHMC(
            steps_per_temperature=self.steps_per_temperature,
            num_leapfrog_steps=self.num_leapfrog_steps,
            final_steps=self.final_steps,
            warmup_steps=10,
            pilot_steps=min(4 * self.num_steps, 100),
            adapt_factor=1.1,
        )
        pilot_x0 = torch.randn(
            (self.pilot_size, *x0.shape[1:]), dtype=x0.dtype, device=x0.device, generator=generator
        )
        nfe = 0
        for record in annealed.iterate(pilot_x0, x0, targets, 0.3 * deviations, generator):
            nfe += record.nfe
            acceptance = record.acceptance.item()
            yield Frame(record.state.position, record.index + 1, len(targets), nfe, acceptance)

    def _times(self, energy: TimeScoreEnergy) -> Tensor:
        for name in ("num_steps", "steps_per_temperature", "num_leapfrog_steps", "pilot_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.final_steps < 0:
            raise UserError(f"final_steps must not be negative: {self.final_steps}")
        end = _time_of_variance(energy, self.end_variance)
        return temperatures(self.schedule, energy.path, energy.start, end, self.num_steps)[1:]


def _time_of_variance(energy: TimeScoreEnergy, variance: float) -> float:
    """The last time of the model, or the earlier one at which the path's variance falls to
    ``variance``.

    Raises:
        UserError: where the variance never exceeds ``variance``.
    """
    path = energy.path
    first, last = (torch.tensor(t, dtype=torch.float64) for t in (energy.start, energy.end))
    if not path.variance(first) > variance:
        raise UserError(
            f"end_variance {variance} is not below the variance at the start: lower it"
        )
    if path.variance(last) > variance:
        return energy.end
    return find_time(lambda t: path.variance(t) - variance, energy.start, energy.end)


SAMPLERS: dict[str, type[Sampler]] = {"pf_ode": PFODESampler, "annealed_hmc": AnnealedHMCSampler}
