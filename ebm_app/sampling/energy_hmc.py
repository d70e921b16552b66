"""Annealed HMC whose accept step reads the energy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.io.fields import Count, Draws, Nodes, Positive, PositiveInt, Steps
from ebm_app.io.registry import choose
from ebm_app.likelihood import PFODEIntegral
from ebm_app.models.energy import INTEGRAL, TimeScoreEnergy
from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.base import Frame, Sampler, check_counts, time_of_variance
from ebm_app.sampling.hmc import Target
from ebm_app.sampling.schedules import temperatures

#: (x (B, *), t) -> an unnormalised log p_t(x), (B,)
Density = Callable[[Tensor, float], Tensor]


def ratio(energy: TimeScoreEnergy, num_nodes: int) -> Density:
    """The integral of the time score, by ``num_nodes`` nodes."""
    return energy.with_nodes(num_nodes).proposal_log_density


def along_pf_ode(energy: TimeScoreEnergy, num_nodes: int) -> Density:
    """The line integral along the probability-flow ODE, by ``num_nodes`` steps."""
    integral = PFODEIntegral(num_steps=num_nodes, max_refinements=0)
    return lambda x, t: integral(energy, x, t).value


ENERGIES: dict[str, Callable[[TimeScoreEnergy, int], Density]] = {
    "ratio": ratio,
    "along_pf_ode": along_pf_ode,
}


@dataclass(frozen=True)
class EnergyHMCSampler(Sampler):
    """HMC through the model's own p_t (paper, section 6). Pilot chains, one temperature ahead of
    the others, find the step sizes.

    The Stein score drives the leapfrog and the energy decides on acceptance, so that the
    transitions leave the density of that energy invariant whichever score drives them.

    Args:
        num_steps: temperatures. schedule: their spacing, a key of ``SCHEDULES``.
        steps_per_temperature, num_leapfrog_steps: HMC transitions at a temperature, leapfrog steps
            of each.
        final_steps: further HMC transitions at the last temperature.
        pilot_size: pilot chains.
        energy: what decides on acceptance, "ratio" or "along_pf_ode", as the estimators of these
            names.
        score: "integral" or "head". The gradient of the integral, by few nodes too, belongs to the
            energy; a trained head differs from it, and needs far smaller steps to be accepted.
        num_nodes: quadrature nodes of the energy "ratio", steps of the ODE of "along_pf_ode", of
            four evaluations each.
        score_nodes: nodes of the integral whose gradient drives the leapfrog.
        end_variance: conditional variance at the last temperature.
    """

    note: ClassVar[str] = "annealed Hamiltonian Monte Carlo from noise through the model's p_t"
    steps: ClassVar[str] = "temperatures"

    num_steps: Steps = 20
    schedule: str = "clock"
    steps_per_temperature: PositiveInt = 2
    num_leapfrog_steps: PositiveInt = 5
    final_steps: Count = 5
    pilot_size: Draws = 4
    energy: str = "ratio"
    score: str = INTEGRAL
    num_nodes: Nodes = 8
    score_nodes: Nodes = 4
    end_variance: Positive = 1e-3

    def iterate(
        self, energy: TimeScoreEnergy, x0: Tensor, generator: torch.Generator
    ) -> Iterator[Frame]:
        times = self._times(energy)
        score = energy.with_nodes(self.score_nodes).stein_score(self.score)
        density = ENERGIES[choose("energy", self.energy, ENERGIES)](energy, self.num_nodes)
        targets = [Target(partial(density, t=t), partial(score, t=t)) for t in times.tolist()]
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
        check_counts(
            1,
            num_steps=self.num_steps,
            steps_per_temperature=self.steps_per_temperature,
            num_leapfrog_steps=self.num_leapfrog_steps,
            pilot_size=self.pilot_size,
        )
        check_counts(0, final_steps=self.final_steps)
        end = time_of_variance(energy, self.end_variance)
        return temperatures(self.schedule, energy.path, energy.start, end, self.num_steps)[1:]
