r"""Annealed chains through the model's own p_t, whose weights give log Z.

The intermediate distributions have the densities p_hat_k(x) = N(x; 0, I) exp(int_0^{t_k} s dt),
each known up to its constant Z_k, with Z_0 = 1. The weight of a forward chain has mean Z_K, and
that of a reverse chain from a sample of p_hat_K / Z_K has a reciprocal of mean 1 / Z_K:

- AIS: forward, the chains stay where they are between two temperatures.
- RAISE: the same in reverse from data, where the mean of -log w is also a stochastic bound on the
  log-likelihood of the annealing process itself.
- transported AIS: the chains move between temperatures by invertible steps of the
  probability-flow ODE, whose determinants enter the weights.
- diffused AIS: by steps of the reversed diffusion, the density of whose way back enters them.

The accept step and the increment of log w evaluate the same density, a rule of ``num_nodes``
nodes, for which the weights are exact. A last distribution without transitions carries them over
to the rule of the model's own.

Sources: Neal 2001, arXiv:physics/9803008; Burda, Grosse, Salakhutdinov 2015, arXiv:1412.8566
(RAISE); Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612 (transport); Jarzynski 1997 and Crooks
1999 for the two directions.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.annealing.transports import Transport
from ebm_app.nets.protocols import INTEGRAL, LogDensity, require, stein_score
from ebm_app.paths.schedules import SCHEDULES, ScheduleName
from ebm_app.sampling.annealing import IntermediateDistribution, Move, anneal, stay
from ebm_app.sampling.hmc import Target, adapt
from ebm_app.utils.fields import Nodes, PositiveInt, Steps, advanced, configuration, setting
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import sum_except_batch

#: pilot chains, whose median step sizes are taken, and their further transitions at each of so
#: many temperatures
NUM_PILOT, PILOT_STEPS, PILOT_TEMPERATURES = 4, 3, 100
#: acceptance that the steps are tuned to: chains that hardly move cost log w more than short steps
ACCEPTANCE = 0.9
#: of ``adapt``, whose own is slow to lengthen steps where so much is accepted
GROWTH = math.exp(0.45)
#: nodes of the leapfrog's gradient: few are enough, since the accept step corrects for them
SCORE_NODES = 4


class ChainState(NamedTuple):
    """B chains after k of their distributions.

    Attributes:
        position: (B, *). log_density: (B,), there, of the last distribution.
        log_weight: (B,) float64, the logarithm of the weight so far, in nats.
        acceptance: (B,), the mean acceptance probability so far, of all chains.
    """

    position: Tensor
    log_density: Tensor
    log_weight: Tensor
    acceptance: Tensor


@configuration(kw_only=True)
class Annealing:
    """Settings of annealed chains."""

    num_temperatures: Steps = setting("annealing temperatures", 48)
    schedule: ScheduleName = setting(
        "spacing of the temperatures: arc_length, log_snr or linear", "arc_length"
    )
    steps_per_temperature: PositiveInt = setting("HMC transitions at each", 1)
    num_leapfrog_steps: PositiveInt = setting("leapfrog steps of each transition", 4)
    score: str = setting("what drives the leapfrog: integral or head", INTEGRAL)
    num_nodes: Nodes = advanced("quadrature nodes of the densities", 8)


class Chains:
    """Annealed chains of a model, forward and in reverse.

    Args:
        energy: the model; ``energy.end`` is the last temperature.
        settings: of the chains.
        transport: how the chains come from one temperature to the next.
    """

    def __init__(self, energy: LogDensity, settings: Annealing, transport: Transport) -> None:
        energy = require(energy, LogDensity, "annealed importance sampling")
        energy.path.check_reference()
        self.energy, self.settings = energy, settings
        schedule = SCHEDULES[choose("schedule", settings.schedule, SCHEDULES)]
        self.times = schedule.times(
            energy.path, energy.start, energy.end, settings.num_temperatures
        )
        coarse = energy.with_nodes(settings.num_nodes)
        score = stein_score(energy.with_nodes(SCORE_NODES), settings.score)
        self.targets = [
            Target(partial(coarse.log_density, t=t), partial(score, t=t))
            for t in self.times[1:].tolist()
        ]
        self.step_sizes = 0.3 * energy.path.variance(self.times[1:]).sqrt()
        self.reference = _still(lambda x: sum_except_batch(energy.path.reference_log_density(x)))
        self.final = _still(partial(energy.log_density, t=energy.end))
        self.moves = transport(energy, self.times)

    def tune(self, x0: Tensor, generator: torch.Generator) -> Iterator[int]:
        """Adapt the step sizes by pilot chains from ``x0`` (B, *): the number of temperatures
        passed, as they are. The step sizes change after the last.

        Every chain adapts a scale of its own. The median over the chains is taken, which a few
        chains that are stuck, or meet no resistance, do not move.
        """
        count = self.settings.steps_per_temperature + PILOT_STEPS
        follow = partial(adapt, target=ACCEPTANCE, growth=GROWTH)
        stride = math.ceil(len(self.targets) / PILOT_TEMPERATURES)
        pilots = [
            distribution._replace(num_steps=0 if k % stride else count, adapt=follow)
            for k, distribution in enumerate(self._temperatures(self.moves.pilot))
        ]
        steps, scale = [], torch.ones(len(x0), dtype=torch.float64)
        for record in anneal(x0, pilots, self.settings.num_leapfrog_steps, generator, scale):
            steps.append(record.step_size.quantile(0.5))
            yield len(steps)
        self.step_sizes = torch.stack(steps)

    def forward(self, x0: Tensor, generator: torch.Generator) -> Iterator[ChainState]:
        """Chains from draws ``x0`` (B, *) of N(0, I), after each of their distributions."""
        last = IntermediateDistribution(self.final, self.step_sizes[-1], 0)
        found = self._temperatures(self.moves.there)
        return self._run(x0, self.reference, [*found, last], 1, generator)

    def reverse(self, x: Tensor, generator: torch.Generator) -> Iterator[ChainState]:
        """Chains back from points ``x`` (B, *) of the model; ``log_weight`` has the sign of the
        forward chains."""
        # a temperature is left, not entered, by its own move back
        first, *others = self.moves.back
        found = reversed(self._temperatures([*others, stay]))
        end = IntermediateDistribution(self.reference, self.step_sizes[0], 0, first)
        return self._run(x, self.final, [*found, end], -1, generator)

    def _temperatures(self, moves: list[Move]) -> list[IntermediateDistribution]:
        """The distributions of all temperatures, from the first on, with the moves there."""
        count = self.settings.steps_per_temperature
        return [
            IntermediateDistribution(target, step, count, move)
            for target, step, move in zip(self.targets, self.step_sizes, moves, strict=True)
        ]

    def _run(
        self,
        x: Tensor,
        start: Target,
        distributions: list[IntermediateDistribution],
        sign: int,
        generator: torch.Generator,
    ) -> Iterator[ChainState]:
        log_density = start.log_density(x)
        log_weight, accepted = torch.zeros_like(log_density, dtype=torch.float64), []
        for record in anneal(x, distributions, self.settings.num_leapfrog_steps, generator):
            increment = record.entry_log_density + record.log_det - log_density
            position, log_density, _ = record.state
            log_weight = log_weight + sign * increment
            accepted.append(record.acceptance)
            mean = torch.tensor(accepted).nanmean().expand(len(x))
            yield ChainState(position, log_density, log_weight, mean)


def _still(log_density: Callable[[Tensor], Tensor]) -> Target:
    """A density at which nothing moves."""
    return Target(log_density, torch.zeros_like)
