r"""Annealed chains through the model's own p_t, whose weights give log Z.

The intermediate distributions have the densities p_hat_k(x) = N(x; 0, I) exp(int_0^{t_k} s dt),
each known up to its constant Z_k, with Z_0 = 1. The weight of a forward chain has mean Z_K, and
that of a reverse chain from a sample of p_hat_K / Z_K has a reciprocal of mean 1 / Z_K:

- AIS: forward, the chains stay where they are between two temperatures.
- RAISE: the same in reverse from data, where the mean of -log w is also a stochastic bound on the
  log-likelihood of the annealing process itself.
- transported AIS: the chains move between temperatures by invertible steps of the
  probability-flow ODE, whose determinants enter the weights.

The accept step and the increment of log w evaluate the same density, a rule of ``num_nodes``
nodes, for which the weights are exact. A last distribution without transitions carries them over
to the rule of the model's own.

Sources: Neal 2001, arXiv:physics/9803008; Burda, Grosse, Salakhutdinov 2015, arXiv:1412.8566
(RAISE); Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612 (transport); Jarzynski 1997 and Crooks
1999 for the two directions.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.io.fields import Nodes, Positive, PositiveInt, Steps, configuration, setting
from ebm_app.io.registry import choose
from ebm_app.models.energy import INTEGRAL, TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.paths.midpoint import ImplicitMidpoint
from ebm_app.paths.probability_flow import ProbabilityFlow
from ebm_app.paths.schedules import SCHEDULES
from ebm_app.sampling.annealing import IntermediateDistribution, Move, anneal, pilot, stay
from ebm_app.sampling.hmc import Target

#: pilot chains, whose median step sizes are taken
NUM_PILOT = 4


class ChainState(NamedTuple):
    """B chains after k of their distributions.

    Attributes:
        position: (B, *). log_density: (B,), there, of the last distribution.
        log_weight: (k + 1, B), the logarithm of the weight after 0, ..., k distributions, in nats.
        acceptance: (k,), mean acceptance probability at each; NaN without transitions.
    """

    position: Tensor
    log_density: Tensor
    log_weight: Tensor
    acceptance: Tensor


@configuration(kw_only=True)
class Annealing:
    """Settings of annealed chains."""

    num_temperatures: Steps = setting("annealing temperatures", 48)
    schedule: str = setting("their spacing: clock, log_snr or linear", "clock")
    steps_per_temperature: PositiveInt = setting("HMC transitions at each", 1)
    num_leapfrog_steps: PositiveInt = setting("leapfrog steps of each transition", 4)
    score: str = setting("what drives the leapfrog: integral or head", INTEGRAL)
    num_nodes: Nodes = setting("quadrature nodes of the densities", 8, rare=True)
    # few are enough, since the accept step corrects for them
    score_nodes: Nodes = setting("nodes of the leapfrog's gradient", 4, rare=True)
    # to see what depends on them
    step_factor: Positive = setting("multiplies the adapted step sizes", 1.0, rare=True)


class Chains:
    """Annealed chains of a model, forward and in reverse.

    Args:
        energy: the model; ``energy.end`` is the last temperature.
        settings: of the chains.
    """

    def __init__(self, energy: TimeScoreEnergy, settings: Annealing) -> None:
        self.energy, self.settings = energy, settings
        schedule = SCHEDULES[choose("schedule", settings.schedule, SCHEDULES)]
        self.times = schedule.times(
            energy.path, energy.start, energy.end, settings.num_temperatures
        )
        coarse = energy.with_nodes(settings.num_nodes)
        score = energy.with_nodes(settings.score_nodes).stein_score(settings.score)
        self.targets = [
            Target(partial(coarse.proposal_log_density, t=t), partial(score, t=t))
            for t in self.times[1:].tolist()
        ]
        self.step_sizes = 0.3 * energy.path.variance(self.times[1:]).sqrt()
        self.reference = _still(lambda x: sum_except_batch(energy.path.reference_log_density(x)))
        self.final = _still(partial(energy.proposal_log_density, t=energy.end))

    @property
    def num_distributions(self) -> int:
        """Distributions of a run, the last of which has no transitions."""
        return len(self.targets) + 1

    def tune(self, x0: Tensor, generator: torch.Generator) -> Iterator[int]:
        """Adapt the step sizes by pilot chains from ``x0`` (B, *): the number of temperatures
        passed, as they are. The step sizes change after the last."""
        steps = []
        for record in pilot(x0, self._forward(), self.settings.num_leapfrog_steps, generator):
            steps.append(record.step_size)
            yield len(steps)
        self.step_sizes = torch.stack(steps) * self.settings.step_factor

    def forward(self, x0: Tensor, generator: torch.Generator) -> Iterator[ChainState]:
        """Chains from draws ``x0`` (B, *) of N(0, I), after each of their distributions."""
        last = IntermediateDistribution(self.final, self.step_sizes[-1], 0)
        return self._run(x0, self.reference, [*self._forward(), last], 1, generator)

    def reverse(self, x: Tensor, generator: torch.Generator) -> Iterator[ChainState]:
        """Chains back from points ``x`` (B, *) of the model; ``log_weight`` has the sign of the
        forward chains."""
        *moves, last = [stay, *self.moves_back()]
        steps = self.step_sizes.flip(0)
        found = self._distributions(self.targets[::-1], steps, moves)
        end = IntermediateDistribution(self.reference, steps[-1], 0, last)
        return self._run(x, self.final, [*found, end], -1, generator)

    def moves(self) -> list[Move]:
        """How the chains come to each temperature from the one before: they stay."""
        return [stay] * len(self.targets)

    def moves_back(self) -> list[Move]:
        """How they leave each temperature for the one before, the last temperature first."""
        return [stay] * len(self.targets)

    def _run(
        self,
        x: Tensor,
        start: Target,
        distributions: list[IntermediateDistribution],
        sign: int,
        generator: torch.Generator,
    ) -> Iterator[ChainState]:
        zero = torch.zeros(1, len(x), dtype=torch.float64, device=x.device)
        state = ChainState(x, start.log_density(x), zero, torch.zeros(0))
        for record in anneal(x, distributions, self.settings.num_leapfrog_steps, generator):
            increment = record.entry_log_density + record.log_ratio - state.log_density
            state = ChainState(
                record.state.position,
                record.state.log_density,
                torch.cat([state.log_weight, state.log_weight[-1:] + sign * increment]),
                torch.cat([state.acceptance, record.acceptance.float().cpu()[None]]),
            )
            yield state

    def _forward(self) -> list[IntermediateDistribution]:
        return self._distributions(self.targets, self.step_sizes, self.moves())

    def _distributions(
        self, targets: list[Target], steps: Tensor, moves: list[Move]
    ) -> list[IntermediateDistribution]:
        count = self.settings.steps_per_temperature
        return [
            IntermediateDistribution(target, step, count, move)
            for target, step, move in zip(targets, steps, moves, strict=True)
        ]


class TransportedChains(Chains):
    """The same, moved from one temperature to the next by a step of the probability-flow ODE, a
    bijection whose determinant costs D backward passes (``ImplicitMidpoint``)."""

    #: time at which the first step takes N(0, I) for p_t: its alpha exceeds 0
    start = 1e-4

    def __init__(self, energy: TimeScoreEnergy, settings: Annealing) -> None:
        super().__init__(energy, settings)
        first, *others = self.times.tolist()
        flow = ProbabilityFlow(energy.stein_score(), energy.path)
        self.steps = [
            ImplicitMidpoint(flow, *ends) for ends in pairwise([max(first, self.start), *others])
        ]

    def moves(self) -> list[Move]:
        return [_move(step.forward) for step in self.steps]

    def moves_back(self) -> list[Move]:
        return [_move(step.backward) for step in reversed(self.steps)]


def _still(log_density: Callable[[Tensor], Tensor]) -> Target:
    """A density at which nothing moves."""
    return Target(log_density, torch.zeros_like)


def _move(bijection: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Move:
    """A bijection with its log-determinant as a transport, which needs no randomness."""
    return lambda x, generator: bijection(x)
