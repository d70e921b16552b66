r"""Annealed chains through the model's own p_t, whose weights give log Z.

The intermediate distributions have the densities p_hat_k(x) = N(x; 0, I) exp(int_0^{t_k} s dt),
known up to their constants Z_k, with Z_0 = 1. The weight of a forward chain has mean Z_K. The
reciprocal weight of a reverse chain from a sample of p_hat_K / Z_K has mean 1 / Z_K:

- AIS: forward chains, which do not move between temperatures.
- RAISE: the same chains in reverse from data, where the mean of -log w is also a stochastic bound
  on the log-likelihood of the annealing process.
- diffused AIS: chains that take a step of the reverse diffusion between temperatures, with exact
  weights (``ebm_app.annealing.moves``).

The accept step and the weights use the same quadrature rule of ``NUM_NODES`` nodes, so the weights
are exact for its density. The last factor of a weight converts to the model's own rule.

Sources: Neal 2001, arXiv:physics/9803008; Burda, Grosse, Salakhutdinov 2015, arXiv:1412.8566
(RAISE); Jarzynski 1997 and Crooks 1999 for the two directions.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.annealing.estimates import LogZ, bennett, from_forward, from_reverse
from ebm_app.annealing.moves import DenoisingMove, Move
from ebm_app.nets.model import TimeScoreModel
from ebm_app.paths import require_one_sided
from ebm_app.paths.base import ARC_LENGTH
from ebm_app.sampling.hmc import (
    Field,
    IntermediateDistribution,
    Target,
    Transport,
    adapt,
    anneal,
    stay,
)
from ebm_app.utils.fields import PositiveInt, Steps, configuration, setting
from ebm_app.utils.random import BatchNoise, make_generator
from ebm_app.utils.tensors import sum_except_batch

#: Number of pilot chains, their extra transitions, and max temperatures with transitions
NUM_PILOT, PILOT_STEPS, PILOT_TEMPERATURES = 4, 3, 100
#: Target acceptance; chains that hardly move increase the variance of log w
ACCEPTANCE = 0.9
#: Growth factor for ``adapt``, whose default is slow at high acceptance
GROWTH = math.exp(0.45)
#: Quadrature nodes of the densities
NUM_NODES = 8
#: Quadrature nodes of the gradient in the leapfrog; the accept step corrects its error
GRADIENT_NODES = 4
#: Chains per batch
BLOCK_SIZE = 16
#: Random number streams
PILOT, FORWARD, REVERSE = 0, 1, 2


@configuration(kw_only=True)
class Annealing:
    """Settings of annealed chains."""

    num_temperatures: Steps = setting("annealing temperatures", 48)
    steps_per_temperature: PositiveInt = setting("HMC transitions per temperature", 1)
    num_leapfrog_steps: PositiveInt = setting("leapfrog steps per transition", 4)


class ChainEnds(NamedTuple):
    """B chains after their last distribution, on the CPU.

    Attributes:
        position: (B, *).
        log_weight: (B,) float64, in nats.
        acceptance: (B,), mean acceptance probability of each chain's batch.
    """

    position: Tensor
    log_weight: Tensor
    acceptance: Tensor


class Chains:
    """Annealed chains of a model, whose step sizes are tuned by pilot chains first.

    Args:
        model: the density; ``model.end`` is the last temperature.
        settings: settings of the chains.
        is_diffused: whether chains take steps of the reverse diffusion between temperatures.
        data: held-out points (N, *), from which RAISE starts; they set the shape and device.
        seed: seed of all noise. Each batch of chains has its own generator.
    """

    def __init__(
        self,
        model: TimeScoreModel,
        settings: Annealing,
        is_diffused: bool,
        data: Tensor,
        seed: int,
    ) -> None:
        path = require_one_sided(model.path)
        self.model, self.settings, self.data, self.seed = model, settings, data, seed
        self.times = ARC_LENGTH.times(path, model.start, model.end, settings.num_temperatures)
        density = model.with_nodes(NUM_NODES).log_density
        field = model.with_nodes(GRADIENT_NODES).log_density_gradient
        self.targets = [
            Target(partial(field, t=t), partial(density, t=t)) for t in self.times[1:].tolist()
        ]
        self.moves = [Move()] * settings.num_temperatures
        if is_diffused:  # except the first move, because alpha may be 0 at its start
            steps = pairwise(self.times[1:].tolist())
            self.moves[1:] = [DenoisingMove(model.score, path, *ends) for ends in steps]
        self.step_sizes = 0.3 * path.variance(self.times[1:]).sqrt()
        self._tune()

    def forward(self, num: int) -> ChainEnds:
        """Run ``num`` chains from N(0, I)."""
        sizes = map(len, torch.arange(num).split(BLOCK_SIZE))
        starts = [self._noise(size, FORWARD, block) for block, size in enumerate(sizes)]
        distributions = self.distributions([move.forward for move in self.moves])
        return self._run(starts, self._reference, distributions, stay, self._final)

    def reverse(self, points: Tensor) -> ChainEnds:
        """Run chains in reverse from ``points`` (N, *) of the model; ``log_weight`` has the sign
        of forward chains."""
        device = self.data.device
        starts = [
            (block.to(device), BatchNoise(make_generator(device, self.seed, REVERSE, index)))
            for index, block in enumerate(points.split(BLOCK_SIZE))
        ]
        first, *others = (move.backward for move in self.moves)
        distributions = self.distributions([*others, stay])[::-1]
        ends = self._run(starts, self._final, distributions, first, self._reference)
        return ends._replace(log_weight=-ends.log_weight)

    def _tune(self) -> None:
        """Set each step size to the median over the adapted pilot chains, which is robust to stuck
        chains."""
        count = self.settings.steps_per_temperature + PILOT_STEPS
        follow = partial(adapt, target=ACCEPTANCE, growth=GROWTH)
        stride = math.ceil(len(self.targets) / PILOT_TEMPERATURES)
        pilots = [
            distribution._replace(num_steps=0 if k % stride else count, adapt=follow)
            for k, distribution in enumerate(self.distributions([m.fit for m in self.moves]))
        ]
        x0, noise = self._noise(NUM_PILOT, PILOT, 0)
        scale = torch.ones(NUM_PILOT, dtype=torch.float64)
        records = anneal(x0, pilots, self.settings.num_leapfrog_steps, noise, scale)
        medians = [
            record.step_size.quantile(0.5) for record in tqdm(records, "pilot chains", len(pilots))
        ]
        self.step_sizes = torch.stack(medians)

    def distributions(self, transports: list[Transport]) -> list[IntermediateDistribution]:
        """Return the distributions of all temperatures, in increasing order."""
        count = self.settings.steps_per_temperature
        return [
            IntermediateDistribution(target, step, count, transport)
            for target, step, transport in zip(
                self.targets, self.step_sizes, transports, strict=True
            )
        ]

    def _run(
        self,
        starts: list[tuple[Tensor, BatchNoise]],
        first: Field,
        distributions: list[IntermediateDistribution],
        last_move: Transport,
        last: Field,
    ) -> ChainEnds:
        """Run batches of chains from samples of the density ``first`` through the distributions,
        then apply ``last_move`` to reach the density ``last``."""
        batches, num_leapfrog_steps = [], self.settings.num_leapfrog_steps
        with tqdm(desc="chains", total=len(starts) * len(distributions)) as bar:
            for x, noise in starts:
                log_weight, rates = -first(x), []
                for record in anneal(x, distributions, num_leapfrog_steps, noise):
                    log_weight += record.log_ratio - record.entry.potential
                    log_weight += record.state.potential
                    rates.append(record.acceptance)
                    bar.update()
                x, log_ratio = last_move(record.state.position, noise)
                log_weight += log_ratio + last(x)
                acceptance = torch.tensor(rates).mean().expand(len(x))
                batches.append((x.cpu(), log_weight.cpu(), acceptance))
        return ChainEnds(*map(torch.cat, zip(*batches, strict=True)))

    def _reference(self, x: Tensor) -> Tensor:
        return sum_except_batch(require_one_sided(self.model.path).reference_log_density(x))

    def _final(self, x: Tensor) -> Tensor:
        return self.model.log_density(x, self.model.end)

    def _noise(self, num: int, *stream: int) -> tuple[Tensor, BatchNoise]:
        """Return standard normal points (num, *) and the source of further noise."""
        generator = make_generator(self.data.device, self.seed, *stream)
        shape = (num, *self.data.shape[1:])
        x = torch.randn(shape, device=self.data.device, generator=generator)
        return x, BatchNoise(generator)


class LogZResult(NamedTuple):
    """Estimate of log Z and mean acceptance probability of its chains. Methods that run chains in
    both directions also give the estimates from ``forward`` and from ``reverse`` chains alone."""

    estimate: LogZ
    acceptance: float
    forward: LogZ | None = None
    reverse: LogZ | None = None


def raise_(chains: Chains, num_chains: int) -> LogZResult:
    """Run chains in reverse from data, for an upper bound on log Z if the data are samples of the
    model.

    log p_hat of a starting point minus its log-weight is a conservative estimate of the log
    density of the annealing process at that point (Burda et al. 2015, section 4).
    """
    ends = chains.reverse(chains.data[:num_chains])
    return LogZResult(from_reverse(ends.log_weight), ends.acceptance.mean().item())


def two_sided(chains: Chains, num_chains: int) -> LogZResult:
    """Run forward chains, then reverse chains from the weighted ends of half of them, and combine
    the reverse chains with the other half by Bennett's acceptance ratio.

    A few weighted points underestimate their own spread, so the standard error includes
    differences from the one-sided estimates that exceed their errors.
    """
    half = num_chains // 2
    ends = chains.forward(num_chains)
    weights, start = ends.log_weight, ends.log_weight[half:]
    back = chains.reverse(ends.position[half:])
    forward, reverse = from_forward(weights), from_reverse(back.log_weight, start)
    combined = bennett(weights[:half], back.log_weight, start)
    excess = max(
        (combined.log_z - side.log_z) ** 2 - side.stderr**2 for side in (forward, reverse)
    )
    combined = combined._replace(
        stderr=math.sqrt(combined.stderr**2 + max(excess, 0)),
        warnings=forward.warnings + combined.warnings,
    )
    return LogZResult(combined, ends.acceptance.mean().item(), forward, reverse)


#: Name -> (``is_diffused`` of ``Chains``, (chains, number of chains) -> result)
METHODS: dict[str, tuple[bool, Callable[[Chains, int], LogZResult]]] = {
    "diffused": (True, two_sided),
    "ais": (False, two_sided),
    "raise": (False, raise_),
}
