r"""Annealed chains through the model's own p_t, whose weights give log Z.

The intermediate distributions have the densities p_hat_k(x) = N(x; 0, I) exp(int_0^{t_k} s dt),
each known up to its constant Z_k, with Z_0 = 1. The chains may come to each by a transport (see
``ebm_app.evaluation.log_z.transports``). The weight of a forward chain has mean Z_K, and that of a
reverse chain from a sample of p_hat_K / Z_K has a reciprocal of mean 1 / Z_K:

- AIS: forward, no transport. RAISE: the same in reverse from data, where the mean of -log w is
  also a stochastic bound on the log-likelihood of the annealing process itself.
- importance sampling from the probability flow or the reversed diffusion: transport, no
  transitions; the intermediate densities cancel.
- transported AIS: both.

The accept step and the increment of log w evaluate the same density, a rule of ``num_nodes``
nodes, for which the weights are exact. A last distribution without transitions carries them over
to the energy whose log Z is asked for.

Sources: Neal 2001, arXiv:physics/9803008; Burda, Grosse, Salakhutdinov 2015, arXiv:1412.8566
(RAISE); Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612 (transport); Jarzynski 1997 and Crooks
1999 for the two directions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebm_app.evaluation.log_z.transports import TRANSPORTS, Transport
from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.likelihood import ESTIMATORS, Estimator
from ebm_app.models.energy import INTEGRAL, TimeScoreEnergy
from ebm_app.numerics.tensors import sum_except_batch
from ebm_app.paths.clocks import ARC_LENGTH
from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.annealing import IntermediateDistribution, Move, anneal, stay
from ebm_app.sampling.hmc import Target
from ebm_app.sampling.schedules import temperatures

#: estimators of log p_t without noise of their own, whose exponential is a density up to Z
ENERGIES: dict[str, type[Estimator]] = {
    name: ESTIMATORS[name] for name in ("ratio", "along_pf_ode", "pf_ode_exact")
}
#: (records, their number) -> the same records, shown as they come
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


class ChainState(NamedTuple):
    """B chains after k of their distributions.

    Attributes:
        position: (B, *). log_density: (B,), there, of the last distribution.
        log_weight: (k + 1, B), the logarithm of the weight after 0, ..., k distributions, in nats.
        acceptance: (k,), mean acceptance probability at each; NaN without transitions.
        rng: state of the generator, from which the chains go on as if never stopped.
        nfe: calls of the leapfrog's field so far.
    """

    position: Tensor
    log_density: Tensor
    log_weight: Tensor
    acceptance: Tensor
    rng: Tensor
    nfe: Tensor


@dataclass(frozen=True)
class Annealing:
    """Settings of annealed chains.

    Args:
        num_temperatures: K. schedule: their spacing, a key of ``SCHEDULES``.
        steps_per_temperature, num_leapfrog_steps: HMC transitions at each, leapfrog steps of a
            transition; without transitions the chains are importance sampling.
        transport: to each temperature, a key of ``TRANSPORTS``. transport_steps: its steps.
        energy: whose log Z is asked for: an estimator of log p_t without noise of its own, a key
            of ``ENERGIES``.
        score: of the leapfrog, "integral" or "head". transport_score: of the transport.
        num_nodes: quadrature nodes of the intermediate densities.
        score_nodes: nodes of the integral whose gradient drives the leapfrog; few are enough,
            since the accept step corrects for them.
        step_factor: by which the adapted step sizes are multiplied, to see what depends on them.
        transport_start: the time at which the transport takes N(0, I) for p_t; its alpha exceeds
            0.

    Raises:
        UserError: for numbers out of range.
    """

    num_temperatures: int = 24
    schedule: str = "clock"
    steps_per_temperature: int = 2
    num_leapfrog_steps: int = 3
    transport: str = "none"
    transport_steps: int = 1
    energy: str = "ratio"
    score: str = INTEGRAL
    transport_score: str | None = None
    num_nodes: int = 8
    score_nodes: int = 4
    step_factor: float = 1.0
    transport_start: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        choose("transport", self.transport, TRANSPORTS)
        choose("energy", self.energy, ENERGIES)
        if self.steps_per_temperature < 0 or self.transport_steps < 1:
            raise UserError(
                f"steps_per_temperature {self.steps_per_temperature} and transport_steps "
                f"{self.transport_steps} are not possible: give at least 0 and 1"
            )
        if self.num_leapfrog_steps < 1 or not self.step_factor > 0:
            raise UserError("num_leapfrog_steps must be at least 1, step_factor positive")


class Chains:
    """Annealed chains of a model, forward and in reverse.

    Args:
        energy: the model; ``energy.end`` is the last temperature.
        settings: of the chains.
    """

    def __init__(self, energy: TimeScoreEnergy, settings: Annealing) -> None:
        self.energy, self.settings = energy, settings
        self.coarse = energy.with_nodes(settings.num_nodes)
        self.times = temperatures(
            settings.schedule, energy.path, energy.start, energy.end, settings.num_temperatures
        )
        score = energy.with_nodes(settings.score_nodes).stein_score(settings.score)
        self.targets = [
            Target(partial(self.coarse.proposal_log_density, t=t), partial(score, t=t))
            for t in self.times[1:].tolist()
        ]
        self.transports = self._transports()
        deviation = energy.path.variance(self.times[1:]).sqrt()
        self.step_sizes = 0.3 * deviation

    @property
    def num_distributions(self) -> int:
        """Distributions of a run, the last of which has no transitions."""
        return len(self.targets) + 1

    def tune(self, x0: Tensor, generator: torch.Generator) -> Iterator[int]:
        """Adapt the step sizes by pilot chains from ``x0`` (B, *): the number of temperatures
        passed, as they are. The step sizes change after the last; without transitions there is
        nothing to adapt."""
        if not self.settings.steps_per_temperature:
            return
        transports = [transport.forward for transport in self.transports]
        annealed = AnnealedHMC(
            steps_per_temperature=self.settings.steps_per_temperature,
            num_leapfrog_steps=self.settings.num_leapfrog_steps,
            warmup_steps=10,
            pilot_steps=min(4 * self.settings.num_temperatures, 100),
            adapt_factor=1.1,
        )
        steps = []
        for record in annealed.pilot(x0, self.targets, self.step_sizes, generator, transports):
            steps.append(record.step_size)
            yield len(steps)
        self.step_sizes = torch.stack(steps) * self.settings.step_factor

    def start(self, x: Tensor, generator: torch.Generator, is_reverse: bool) -> ChainState:
        """Chains about to leave ``x`` (B, *): draws from N(0, I), or points of the model for a
        reverse run."""
        density = self._final if is_reverse else self._reference
        zero = torch.zeros(1, len(x), dtype=torch.float64, device=x.device)
        rng, nfe = generator.get_state(), torch.zeros((), dtype=torch.int64)
        return ChainState(x, density.log_density(x), zero, torch.zeros(0), rng, nfe)

    def run(
        self, state: ChainState, generator: torch.Generator, is_reverse: bool
    ) -> Iterator[ChainState]:
        """The states after each of the distributions that ``state`` has not passed yet.

        ``log_weight`` has the forward sign in both directions.
        """
        distributions = self._backward() if is_reverse else self._forward()
        sign = -1 if is_reverse else 1
        generator.set_state(state.rng)
        rest = distributions[len(state.acceptance) :]
        if not rest:
            return
        for record in anneal(state.position, rest, self.settings.num_leapfrog_steps, generator):
            increment = record.entry_log_density + record.log_ratio - state.log_density
            state = ChainState(
                record.state.position,
                record.state.log_density,
                torch.cat([state.log_weight, state.log_weight[-1:] + sign * increment]),
                torch.cat([state.acceptance, record.acceptance.float().cpu()[None]]),
                generator.get_state(),
                state.nfe + record.nfe,
            )
            yield state

    @property
    def _reference(self) -> Target:
        path = self.energy.path
        return Target(lambda x: sum_except_batch(path.reference_log_density(x)), torch.zeros_like)

    @property
    def _final(self) -> Target:
        """The energy whose log Z is asked for; nothing moves there."""
        density = ENERGIES[self.settings.energy]()
        return Target(lambda x: density(self.energy, x, self.energy.end).value, torch.zeros_like)

    def _forward(self) -> list[IntermediateDistribution]:
        moves = [transport.forward for transport in self.transports]
        found = self._distributions(self.targets, self.step_sizes, moves)
        return [*found, IntermediateDistribution(self._final, self.step_sizes[-1], 0)]

    def _backward(self) -> list[IntermediateDistribution]:
        """Distribution K first, as it was reached; each further one through the inverse of the
        transport that led away from it; the reference at the end."""
        back = [transport.backward for transport in reversed(self.transports)]
        *moves, last = [stay, *back]
        steps = self.step_sizes.flip(0)
        found = self._distributions(self.targets[::-1], steps, moves)
        return [*found, IntermediateDistribution(self._reference, steps[-1], 0, last)]

    def _distributions(
        self, targets: Sequence[Target], steps: Tensor, moves: Sequence[Move]
    ) -> list[IntermediateDistribution]:
        count = self.settings.steps_per_temperature
        return [
            IntermediateDistribution(target, step, count, move)
            for target, step, move in zip(targets, steps, moves, strict=True)
        ]

    def _transports(self) -> list[Transport]:
        """Those between neighbouring temperatures."""
        settings, points = self.settings, self.settings.transport_steps + 1
        kind = TRANSPORTS[settings.transport]
        first, *others = self.times.tolist()
        times = [max(first, settings.transport_start), *others]
        return [
            kind(
                self.energy,
                ARC_LENGTH.grid(self.energy.path, start, end, points).tolist(),
                settings.transport_score,
            )
            for start, end in pairwise(times)
        ]
