r"""Annealed chains through the model's own p_t, whose weights give log Z.

The intermediate distributions have the densities p_hat_k(x) = N(x; 0, I) exp(int_0^{t_k} s dt),
known up to their constants Z_k, with Z_0 = 1. The weight of a forward chain has mean Z_K. The
reciprocal weight of a reverse chain from a sample of p_hat_K / Z_K has mean 1 / Z_K:

- AIS: forward chains, which do not move between temperatures.
- RAISE: the same chains in reverse from data, where the mean of -log w is also a stochastic bound
  on the log-likelihood of the annealing process.
- diffused AIS: chains that take a step of the reverse diffusion between temperatures, in both
  directions.

A step of the reverse diffusion from time s to t > s draws from a Gaussian with the mean of
Tweedie's formula and one variance u for all dimensions. The step back adds the noise of the path.
With x_t = alpha_t x1 + sqrt(v_t) eps,

    q(x_s | x_t) = N(r x_t, w I),     r = alpha_s / alpha_t,  w = v_s - r^2 v_t,
    p(x_t | x_s) = N((x_s + w score_s(x_s)) / r, u I).

log q - log p enters the weight of the chain. The weights are exact for any score; their variance
is small if the score is close to grad log p_s and p_s is close to p_t with added noise.

The accept step and the weights use the same quadrature rule of ``NUM_NODES`` nodes, so the weights
are exact for its density. The last factor of a weight converts to the model's own rule.

Pilot chains set the step sizes, which follow the acceptance along their way, and are discarded. A
step size that followed a chain's own acceptance would depend on its position, so that its
transitions would not leave p_k invariant; given the step sizes of other chains, they do, and
E[w] = Z_K.

Sources: Neal 2001, arXiv:physics/9803008; Burda, Grosse, Salakhutdinov 2015, arXiv:1412.8566
(RAISE); Jarzynski 1997 and Crooks 1999 for the two directions; Doucet, Grathwohl, Matthews,
Strathmann 2022, arXiv:2208.07698, for the weights of diffused chains; Bao et al. 2022,
arXiv:2201.06503, for the variance u.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.nets.model import TimeScoreModel
from ebm_app.paths import OneSidedPath, require_one_sided
from ebm_app.paths.base import ARC_LENGTH
from ebm_app.sampling.base import Score
from ebm_app.sampling.hmc import (
    Field,
    IntermediateDistribution,
    Target,
    Transport,
    adapt,
    anneal,
    stay,
    warn_if_stuck,
)
from ebm_app.sampling.log_z import LogZ, from_forward, from_reverse, two_sided
from ebm_app.utils.fields import PositiveInt, Steps, configuration, setting
from ebm_app.utils.random import BatchNoise, Noise, make_generator
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch

#: Chains per pilot chain, min number of pilot chains, and of temperatures that they visit
CHAINS_PER_PILOT, MIN_PILOTS, MIN_VISITED = 10, 4, 8
#: Target acceptance of the pilot chains
ACCEPTANCE_TARGET = 0.85
#: Growth factor for ``adapt``, whose default is slow for few temperatures
GROWTH = 1.5
#: Max length of a trajectory, in standard deviations of the noise. A standard normal chain is
#: independent of its start after pi / 2, and is back at minus its start after pi.
MAX_LENGTH = 2.0
#: Quadrature nodes of the densities
NUM_NODES = 8
#: Quadrature nodes of the gradient in the leapfrog; the accept step corrects its error
GRADIENT_NODES = 4
#: Chains per batch
BLOCK_SIZE = 16
#: Random number streams of pilot, forward and reverse chains
PILOT, FORWARD, REVERSE = 0, 1, 2


@configuration(kw_only=True)
class Annealing:
    """Settings of annealed chains."""

    num_temperatures: Steps = setting("annealing temperatures", 48)
    steps_per_temperature: PositiveInt = setting("HMC transitions per temperature", 1)
    num_leapfrog_steps: PositiveInt = setting("leapfrog steps per transition", 4)


class DenoisingStep(NamedTuple):
    """A step of the reverse diffusion from time ``start``, and back, see the module docstring.

    Attributes:
        score: Stein score.
        start: s.
        ratio, added, variance: r, w and u.
    """

    score: Score
    start: float
    ratio: float
    added: float
    variance: float


def denoising_step(score: Score, path: OneSidedPath, start: float, end: float) -> DenoisingStep:
    """Return the step from time ``start`` to ``end`` on a path from N(0, I), with alpha > 0 at
    ``start`` and u = v_t w / v_s, which is exact for a known x_1.

    >>> from ebm_app.paths import LinearVPPath
    >>> step = denoising_step(lambda x, t: -x, LinearVPPath(), 0.3, 0.5)
    >>> y, log_ratio = denoise(step, torch.randn(3, 2), BatchNoise(torch.Generator()))
    >>> y.shape, log_ratio.shape
    (torch.Size([3, 2]), torch.Size([3]))
    """
    times = torch.tensor([start, end], dtype=torch.float64)
    alpha, v = path.alpha(times).tolist(), path.variance(times).tolist()
    ratio = alpha[0] / alpha[1]
    added = v[0] - ratio**2 * v[1]
    return DenoisingStep(torch.no_grad()(score), start, ratio, added, v[1] * added / v[0])


def fit(step: DenoisingStep, square: float) -> DenoisingStep:
    """Return the step with the best variance, u = (w / r^2) (1 - w E|score|^2 / D), if it is
    larger. ``square`` is E|score|^2 / D at time s."""
    best = step.added / step.ratio**2 * (1 - step.added * square)
    return step._replace(variance=max(step.variance, best))


def denoise(step: DenoisingStep, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Draw x_t (B, *) given ``x`` = x_s; the log ratio (B,) is log q(x_s | x_t) - log p(x_t |
    x_s)."""
    mean = _mean(step, x)
    y = mean + math.sqrt(step.variance) * noise.normal_like(x)
    return y, _log_ratio(step, x, y, mean)


def diffuse(step: DenoisingStep, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Draw x_s (B, *) given ``x`` = x_t; the log ratio (B,) is log p(x_t | x_s) - log q(x_s |
    x_t)."""
    noised = step.ratio * x + math.sqrt(step.added) * noise.normal_like(x)
    return noised, -_log_ratio(step, noised, x, _mean(step, noised))


def _mean(step: DenoisingStep, x: Tensor) -> Tensor:
    return (x + step.added * step.score(x, step.start)) / step.ratio


def _log_ratio(step: DenoisingStep, x: Tensor, y: Tensor, mean: Tensor) -> Tensor:
    back = _log_density(x - step.ratio * y, step.added)
    return back - _log_density(y - mean, step.variance)


def _log_density(residual: Tensor, variance: float) -> Tensor:
    """Return log N(residual; 0, variance I): (B, *) -> (B,) float64."""
    unit = standard_normal_log_density(residual.double() / math.sqrt(variance))
    return sum_except_batch(unit - math.log(variance) / 2)


class Chains(NamedTuple):
    """Annealed chains, ready to run in either direction.

    Attributes:
        model: density p_t; its ``end`` is the last temperature.
        settings: settings of the chains.
        points: points (N, *) with the shape and device of the chains, from which RAISE starts.
        seed: seed of all noise. Each batch of chains has its own generator.
        targets: p_1, ..., p_K.
        times: times (K,) of the targets.
        step_sizes: leapfrog steps (K,).
        steps: no steps between temperatures, or K - 1 from p_1 to p_K.
    """

    model: TimeScoreModel
    settings: Annealing
    points: Tensor
    seed: int
    targets: list[Target]
    times: Tensor
    step_sizes: Tensor
    steps: list[DenoisingStep]

    def distributions(
        self, move: Callable[[DenoisingStep, Tensor, Noise], tuple[Tensor, Tensor]]
    ) -> list[IntermediateDistribution]:
        """Return the distributions in order, where ``move`` is the transport of a step."""
        moves: list[Transport] = [partial(move, step) for step in self.steps]
        moves = [stay] * (len(self.targets) - len(moves)) + moves
        count = self.settings.steps_per_temperature
        return [
            IntermediateDistribution(target, size, count, transport)
            for target, size, transport in zip(self.targets, self.step_sizes, moves, strict=True)
        ]

    def deviations(self) -> Tensor:
        """Return the standard deviations (K,) of the noise of the path."""
        return require_one_sided(self.model.path).variance(self.times).sqrt()

    def reference(self, x: Tensor) -> Tensor:
        """Return log N(x; 0, I): (B,)."""
        return sum_except_batch(require_one_sided(self.model.path).reference_log_density(x))

    def final(self, x: Tensor) -> Tensor:
        """Return log p_hat_K(x) by the model's own rule: (B,)."""
        return self.model.log_density(x, self.model.end)


def make_chains(model: TimeScoreModel, settings: Annealing, points: Tensor, seed: int) -> Chains:
    """Return chains that do not move between temperatures, with a step size of one standard
    deviation of the noise. See ``Chains`` for the arguments."""
    path = require_one_sided(model.path)
    times = ARC_LENGTH.times(path, model.start, model.end, settings.num_temperatures)[1:]
    density = model.with_nodes(NUM_NODES).log_density
    field = model.with_nodes(GRADIENT_NODES).log_density_gradient
    targets = [Target(partial(field, t=t), partial(density, t=t)) for t in times.tolist()]
    deviations = path.variance(times).sqrt()
    return Chains(model, settings, points, seed, targets, times, deviations, [])


def with_steps(chains: Chains) -> Chains:
    """Return chains that take a step of the reverse diffusion between temperatures, except before
    p_1, because alpha may be 0 at its start."""
    score, path = chains.model.score, require_one_sided(chains.model.path)
    steps = [denoising_step(score, path, *ends) for ends in pairwise(chains.times.tolist())]
    return chains._replace(steps=steps)


def tune(chains: Chains, num_chains: int) -> Chains:
    """Return the chains with step sizes and variances of steps from pilot chains.

    Pilot chains take at most a tenth of the gradients of ``num_chains`` chains. If these are few,
    the pilot chains visit some of the temperatures, but at least ``MIN_VISITED`` if there are so
    many, and the settings of the others are interpolated.
    """
    num_pilots = max(MIN_PILOTS, num_chains // CHAINS_PER_PILOT)
    num, limit = len(chains.targets), MAX_LENGTH / chains.settings.num_leapfrog_steps
    stride = math.ceil(num_pilots * CHAINS_PER_PILOT / num_chains)
    stride = min(stride, max(1, num // MIN_VISITED))
    visited = range((num - 1) % stride, num, stride)

    def follow(scale: Tensor, probability: Tensor) -> Tensor:
        return adapt(scale, probability, ACCEPTANCE_TARGET, GROWTH).clamp(max=limit)

    pilots = chains._replace(
        targets=[chains.targets[k] for k in visited],
        times=chains.times[visited],
        step_sizes=chains.deviations()[visited],
    )
    pilots = with_steps(pilots) if chains.steps else pilots
    x0, noise = _reference_points(chains, num_pilots, PILOT, 0)
    records = anneal(
        x0,
        [distribution._replace(adapt=follow) for distribution in pilots.distributions(denoise)],
        chains.settings.num_leapfrog_steps,
        noise,
        limit,
    )
    sizes, squares = [], []
    for record in tqdm(records, "pilot chains", len(visited)):
        sizes.append(record.step_size.item())
        squares.append(record.state.field.double().square().mean().item())
    deviations, every = chains.deviations().numpy(), np.arange(num)
    scales = np.interp(every, visited, sizes / deviations[visited])
    # v E|score|^2 / D is smooth in arc length, unlike its estimate by a few chains
    squares = Polynomial.fit(visited, squares * deviations[visited] ** 2, min(3, len(visited) - 1))
    per_temperature = (squares(every) / deviations**2).tolist()
    return chains._replace(
        step_sizes=torch.from_numpy(scales * deviations),
        steps=[fit(*pair) for pair in zip(chains.steps, per_temperature, strict=False)],
    )


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


def run_forward(chains: Chains, num: int) -> ChainEnds:
    """Run ``num`` chains from N(0, I)."""
    sizes = map(len, torch.arange(num).split(BLOCK_SIZE))
    starts = [_reference_points(chains, size, FORWARD, block) for block, size in enumerate(sizes)]
    return _run(chains, denoise, starts, chains.reference, chains.final)


def run_reverse(chains: Chains, points: Tensor) -> ChainEnds:
    """Run chains in reverse from ``points`` (N, *) of the model; ``log_weight`` has the sign of
    forward chains."""
    device = chains.points.device
    starts = [
        (block.to(device), BatchNoise(make_generator(device, chains.seed, REVERSE, index)))
        for index, block in enumerate(points.split(BLOCK_SIZE))
    ]
    backward = chains._replace(
        targets=chains.targets[::-1],
        times=chains.times.flip(0),
        step_sizes=chains.step_sizes.flip(0),
        steps=chains.steps[::-1],
    )
    ends = _run(backward, diffuse, starts, chains.final, chains.reference)
    return ends._replace(log_weight=-ends.log_weight)


def _reference_points(chains: Chains, num: int, *stream: int) -> tuple[Tensor, BatchNoise]:
    """Return standard normal points (num, *) and the source of further noise."""
    device = chains.points.device
    generator = make_generator(device, chains.seed, *stream)
    x = torch.randn((num, *chains.points.shape[1:]), device=device, generator=generator)
    return x, BatchNoise(generator)


def _run(
    chains: Chains,
    move: Callable[[DenoisingStep, Tensor, Noise], tuple[Tensor, Tensor]],
    starts: list[tuple[Tensor, BatchNoise]],
    first: Field,
    last: Field,
) -> ChainEnds:
    """Run batches of chains from samples of the density ``first`` to the density ``last``."""
    batches, distributions = [], chains.distributions(move)
    with tqdm(desc="chains", total=len(starts) * len(distributions)) as bar:
        for x, noise in starts:
            log_weight, rates, sizes = -first(x), [], []
            records = anneal(x, distributions, chains.settings.num_leapfrog_steps, noise)
            for record, deviation in zip(records, chains.deviations(), strict=True):
                log_weight += record.log_ratio - record.entry.potential
                log_weight += record.state.potential
                rates.append(record.acceptance)
                sizes.append(record.move() / deviation)
                bar.update()
            x = record.state.position
            log_weight += last(x)
            advice = "more temperatures or leapfrog steps"  # the pilot chains set the step sizes
            warn_if_stuck(torch.tensor(rates), torch.stack(sizes), advice, advice)
            acceptance = torch.tensor(rates).mean().expand(len(x))
            batches.append((x.cpu(), log_weight.cpu(), acceptance))
    return ChainEnds(*map(torch.cat, zip(*batches, strict=True)))


class LogZResult(NamedTuple):
    """Estimate of log Z and mean acceptance probability of its chains. Methods that run chains in
    both directions also give the estimates from ``forward`` and from ``reverse`` chains alone."""

    estimate: LogZ
    acceptance: float
    forward: LogZ | None = None
    reverse: LogZ | None = None


def ais(chains: Chains, num_chains: int) -> LogZResult:
    """Run forward chains. At an equal number of gradients, reverse chains from their ends do not
    decrease the error."""
    ends = run_forward(tune(chains, num_chains), num_chains)
    return LogZResult(from_forward(ends.log_weight), ends.acceptance.mean().item())


def diffused(chains: Chains, num_chains: int) -> LogZResult:
    """Run forward chains with steps of the reverse diffusion, and reverse chains from half of
    their ends. At an equal number of gradients, the error is that of forward chains alone, and the
    difference of the two directions checks it."""
    chains = tune(with_steps(chains), num_chains)
    ends = run_forward(chains, num_chains)
    back = run_reverse(chains, ends.position[num_chains // 2 :])
    estimates = two_sided(ends.log_weight, back.log_weight)
    return LogZResult(estimates[0], ends.acceptance.mean().item(), *estimates[1:])


def raise_(chains: Chains, num_chains: int) -> LogZResult:
    """Run chains in reverse from data, for an upper bound on log Z if the data are samples of the
    model.

    log p_hat of a starting point minus its log-weight is a conservative estimate of the log
    density of the annealing process at that point (Burda et al. 2015, section 4).
    """
    ends = run_reverse(tune(chains, num_chains), chains.points[:num_chains])
    return LogZResult(from_reverse(ends.log_weight), ends.acceptance.mean().item())


#: Methods by name. Each takes untuned chains and their number.
METHODS: dict[str, Callable[[Chains, int], LogZResult]] = {
    "diffused": diffused,
    "ais": ais,
    "raise": raise_,
}
