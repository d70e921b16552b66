r"""Annealed Hamiltonian Monte Carlo: carry chains from a reference to a target, level by level.

Given targets p_1, ..., p_K, each known up to a constant, the chains start from x0, exact samples
of a reference p_0. Distribution k moves them by a bijection T_k, its transport (the identity, or
a map from p_{k-1} towards p_k), then takes a few transitions that leave p_k invariant.

``temper`` is the one loop; it adds nothing up. Each record it yields holds the log density of the
level at the positions where its transitions began, so that the importance weight of a path
(annealed importance sampling; in nats, up to the constants of p_0 and p_K) is a sum over its
records,

    log w = sum_k [log p_k(T_k x_{k-1}) + log |det T_k'(x_{k-1})| - log p_{k-1}(x_{k-1})],

the terms being ``entry_log_density`` and ``log_det`` of record k and ``state.log_density`` of the
record before it. Without weights the samples are approximate: the chains lag behind the levels.
Because the transitions are reversible, the same loop through the levels in reverse, with the
inverse transports, is the reverse path.

References: Neal 2001, Annealed importance sampling, arXiv:physics/9803008; Neal 2011,
arXiv:1206.1901; Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612, for the transport.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.sampling import hmc
from ebm_app.sampling.hmc import HMCState, Target

# (scale of the step sizes () or (B,), acceptance probabilities (B,)) -> the next scale
Controller = Callable[[Tensor, Tensor], Tensor]
# positions (B, *) -> positions (B, *) under a bijection, and log |det| of it (B,) float64
Transport = Callable[[Tensor], tuple[Tensor, Tensor]]


def stay(x: Tensor) -> tuple[Tensor, Tensor]:
    """The identity as a transport."""
    return x, torch.zeros(len(x), dtype=torch.float64, device=x.device)


class IntermediateDistribution(NamedTuple):
    """One rung of the ladder.

    Attributes:
        target: density and field of the level.
        step_size: leapfrog step h > 0, () or (B,).
        num_steps: HMC transitions made at the level; with 0 its density is read, no more.
        transport: bijection by which the chains come to the level.
    """

    target: Target
    step_size: Tensor
    num_steps: int
    transport: Transport = stay


class AnnealingRecord(NamedTuple):
    """What one level did.

    Attributes:
        index: 0, ..., K - 1.
        state: the chains at the end of the level; position (B, *).
        entry_log_density: (B,), log density of this level, in nats, where its transitions began.
        log_det: (B,), log |det| of the transport to it, in nats.
        acceptance: (), mean acceptance probability over chains and transitions; NaN without any.
        step_size: step in force at the end of the level, () or (B,).
        nfe: calls of the field, each on the whole batch: 1 + num_steps * num_leapfrog_steps.
    """

    index: int
    state: HMCState
    entry_log_density: Tensor
    log_det: Tensor
    acceptance: Tensor
    step_size: Tensor
    nfe: int


def keep(scale: Tensor, acceptance_probability: Tensor) -> Tensor:
    """The controller of a reported run: the step sizes stay as given."""
    return scale


def temper(
    x0: Tensor,
    levels: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    controller: Controller = keep,
    scale: Tensor | None = None,
) -> Iterator[AnnealingRecord]:
    """Run the chains through the levels; work is done as the records are asked for.

    The step at a level is scale * level.step_size. The controller renews the scale after each
    transition, and the next level inherits it.

    Args:
        x0: (B, *), samples of the reference.
        levels: K >= 1 levels, in order.
        num_leapfrog_steps: leapfrog steps of a transition, at least 1.
        generator: source of randomness, on the device of ``x0``.
        controller: (scale, acceptance probabilities (B,)) -> scale. Any but ``keep`` makes the run
            a pilot: its transitions do not leave the levels invariant.
        scale: at the first transition, () or (B,); 1 if not given.

    Raises:
        ValueError: at once for no levels or a negative number of transitions; while running, if a
            level starts from a point where its density or field is not finite.
    """
    if not levels:
        raise ValueError("annealing needs at least one level")
    if any(level.num_steps < 0 for level in levels):
        raise ValueError("num_steps of a level must not be negative")

    def run() -> Iterator[AnnealingRecord]:
        position = x0
        factor = torch.ones((), dtype=torch.float64) if scale is None else scale
        for index, (target, step_size, num_steps, transport) in enumerate(levels):
            position, log_det = transport(position)
            state = hmc.init(position, target)
            entry, acceptance = state.log_density, torch.full((), torch.nan)
            for step in range(num_steps):
                used = factor * step_size
                state, info = hmc.step(state, target, used, num_leapfrog_steps, generator)
                mean = info.acceptance_probability.mean()
                acceptance = mean if step == 0 else acceptance + (mean - acceptance) / (step + 1)
                factor = controller(factor, info.acceptance_probability)
            position = state.position
            nfe = 1 + num_steps * num_leapfrog_steps
            used = factor * step_size
            yield AnnealingRecord(index, state, entry, log_det, acceptance, used, nfe)

    return run()


def pilot(
    x0: Tensor,
    levels: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    controller: Controller = hmc.adapt,
) -> Iterator[AnnealingRecord]:
    """Find step sizes by a run of ``temper`` whose scales follow the acceptance, level by level.

    Every chain adapts a scale of its own, and the ``step_size`` () of a record is the median over
    the chains, which a chain that is stuck or free does not move. The chains of a pilot are thrown
    away: report a run of fresh chains with the steps found.

    Args and errors as in ``temper``. The step sizes () of ``levels`` are the first guess; once the
    scales have settled, only their ratios matter.
    """
    scale = torch.ones(len(x0), dtype=torch.float64)
    for result in temper(x0, levels, num_leapfrog_steps, generator, controller, scale):
        yield result._replace(step_size=result.step_size.quantile(0.5))


@dataclass(frozen=True)
class AnnealedHMC:
    """A pilot that finds the step sizes, then a run of fresh chains with these frozen.

    Attributes:
        steps_per_temperature: HMC transitions at each level, at least 1.
        num_leapfrog_steps: leapfrog steps of a transition, at least 1.
        final_steps: further transitions at the last level.
        target_acceptance: mean acceptance probability the pilot aims at, in (0, 1).
        warmup_steps: further transitions of the pilot at the first level, where the scale settles.
        pilot_steps: further transitions of the pilot in all, by which the scale follows the
            levels; spread over them, since a longer ladder changes less from level to level.
        adapt_factor: by which the pilot changes the scale after each transition, above 1.

    Raises:
        ValueError: for a count below its minimum.
    """

    steps_per_temperature: int = 1
    num_leapfrog_steps: int = 5
    final_steps: int = 0
    target_acceptance: float = 0.65
    warmup_steps: int = 50
    pilot_steps: int = 0
    adapt_factor: float = 1.05

    def __post_init__(self) -> None:
        """Refuse counts that make no run."""
        if self.steps_per_temperature < 1 or self.num_leapfrog_steps < 1:
            raise ValueError("steps_per_temperature and num_leapfrog_steps must be at least 1")
        if min(self.final_steps, self.warmup_steps, self.pilot_steps) < 0:
            raise ValueError("final_steps, warmup_steps and pilot_steps must not be negative")

    def pilot(
        self,
        x0: Tensor,
        targets: Sequence[Target],
        step_sizes: Tensor,
        generator: torch.Generator,
        transports: Sequence[Transport] = (),
    ) -> Iterator[AnnealingRecord]:
        """Tune first guesses ``step_sizes`` (K,) with chains from ``x0`` (B, *): a record a level,
        on demand.

        Raises:
            ValueError: at once, for no targets or lengths that differ; else as ``temper``.
        """
        levels = self.levels(targets, step_sizes, transports)
        extra = [self.pilot_steps * k // len(levels) for k in range(len(levels) + 1)]
        counts = [b - a for a, b in pairwise(extra)]
        counts[0] += self.warmup_steps
        levels = [
            level._replace(num_steps=level.num_steps + count)
            for level, count in zip(levels, counts, strict=True)
        ]
        rule = partial(
            hmc.adapt, target_acceptance=self.target_acceptance, factor=self.adapt_factor
        )
        return pilot(x0, levels, self.num_leapfrog_steps, generator, rule)

    def iterate(
        self,
        x0_pilot: Tensor,
        x0: Tensor,
        targets: Sequence[Target],
        initial_step_sizes: Tensor,
        generator: torch.Generator,
    ) -> Iterator[AnnealingRecord]:
        """The reported run, each level right after the pilot has found its step: a record a level,
        on demand; its ``nfe`` counts the calls of both, each on a whole batch.

        Args:
            x0_pilot: (B', *), samples of the reference, independent of ``x0``.
            x0: (B, *), samples of the reference.
            targets: K >= 1 targets, in order; the last is the one to sample.
            initial_step_sizes: (K,), first guess of each level's leapfrog step, in the units of x;
                rather small than large, and in proportion to the widths of the levels.
            generator: source of randomness, on the device of ``x0``.

        Raises:
            ValueError: as :meth:`pilot`.
        """
        levels = self.levels(targets, initial_step_sizes)
        pilot_run = self.pilot(x0_pilot, targets, initial_step_sizes, generator)

        def run() -> Iterator[AnnealingRecord]:
            x = x0
            for level, found in zip(levels, pilot_run, strict=True):
                tuned = level._replace(step_size=found.step_size)
                (result,) = temper(x, [tuned], self.num_leapfrog_steps, generator)
                x = result.state.position
                yield result._replace(index=found.index, nfe=found.nfe + result.nfe)

        return run()

    def levels(
        self,
        targets: Sequence[Target],
        step_sizes: Tensor,
        transports: Sequence[Transport] = (),
    ) -> list[IntermediateDistribution]:
        """The rungs of the reported run; each with a transport, or all without.

        Raises:
            ValueError: for no targets, or lengths that differ.
        """
        if not targets:
            raise ValueError("annealing needs at least one target")
        if step_sizes.shape != (len(targets),):
            raise ValueError(f"{len(targets)} targets, but step sizes {tuple(step_sizes.shape)}")
        counts = [self.steps_per_temperature] * len(targets)
        counts[-1] += self.final_steps
        moves = transports or [stay] * len(targets)
        return [
            IntermediateDistribution(*level)
            for level in zip(targets, step_sizes, counts, moves, strict=True)
        ]
