"""Annealed Hamiltonian Monte Carlo with step sizes found by pilot chains.

The chains of a pilot adapt their step sizes and are thrown away; the reported chains are fresh and
keep the step sizes found, so that their transitions leave every distribution invariant.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from ebm_app.sampling import hmc
from ebm_app.sampling.annealing import (
    AnnealingRecord,
    Controller,
    IntermediateDistribution,
    Move,
    anneal,
    stay,
)
from ebm_app.sampling.hmc import Target


def pilot(
    x0: Tensor,
    distributions: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    controller: Controller = hmc.adapt,
) -> Iterator[AnnealingRecord]:
    """Find step sizes by a run of ``anneal`` whose scales follow the acceptance.

    Every chain adapts a scale of its own. The ``step_size`` () of a record is the median over the
    chains, which a few chains that are stuck, or meet no resistance, do not move.

    Args and errors as in ``anneal``. The step sizes () of ``distributions`` are the first guess;
    once the scales have settled, only their ratios matter.
    """
    scale = torch.ones(len(x0), dtype=torch.float64)
    for record in anneal(x0, distributions, num_leapfrog_steps, generator, controller, scale):
        yield record._replace(step_size=record.step_size.quantile(0.5))


@dataclass(frozen=True)
class AnnealedHMC:
    """A pilot that finds the step sizes, then a run of fresh chains with these frozen.

    Attributes:
        steps_per_temperature: HMC transitions at each distribution, at least 1.
        num_leapfrog_steps: leapfrog steps of a transition, at least 1.
        final_steps: further transitions at the last distribution.
        target_acceptance: mean acceptance probability the pilot aims at, in (0, 1).
        warmup_steps: further transitions of the pilot at the first distribution, where the scale
            settles.
        pilot_steps: further transitions of the pilot in all, spread evenly over the distributions:
            the more there are, the less changes from one to the next.
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
        transports: Sequence[Move] = (),
    ) -> Iterator[AnnealingRecord]:
        """Tune first guesses ``step_sizes`` (K,) with chains from ``x0`` (B, *): a record for each
        distribution, on demand.

        Raises:
            ValueError: at once, for no targets or lengths that differ; else as ``anneal``.
        """
        distributions = self.distributions(targets, step_sizes, transports)
        num = len(distributions)
        extra = [b - a for a, b in pairwise(self.pilot_steps * k // num for k in range(num + 1))]
        extra[0] += self.warmup_steps
        distributions = [
            distribution._replace(num_steps=distribution.num_steps + count)
            for distribution, count in zip(distributions, extra, strict=True)
        ]
        rule = partial(
            hmc.adapt, target_acceptance=self.target_acceptance, factor=self.adapt_factor
        )
        return pilot(x0, distributions, self.num_leapfrog_steps, generator, rule)

    def iterate(
        self,
        x0_pilot: Tensor,
        x0: Tensor,
        targets: Sequence[Target],
        initial_step_sizes: Tensor,
        generator: torch.Generator,
    ) -> Iterator[AnnealingRecord]:
        """The reported run: a record for each distribution, on demand, right after the pilot has
        found its step; ``nfe`` counts the calls of both, each on a whole batch.

        Args:
            x0_pilot: (B', *), samples of the reference, independent of ``x0``.
            x0: (B, *), samples of the reference.
            targets: K >= 1 targets, in order; the last is the one to sample.
            initial_step_sizes: (K,), first guess of each leapfrog step, in the units of x; rather
                small than large, and in proportion to the widths of the distributions.
            generator: source of randomness, on the device of ``x0``.

        Raises:
            ValueError: as ``pilot``.
        """
        distributions = self.distributions(targets, initial_step_sizes)
        pilot_run = self.pilot(x0_pilot, targets, initial_step_sizes, generator)

        def run() -> Iterator[AnnealingRecord]:
            x = x0
            for distribution, found in zip(distributions, pilot_run, strict=True):
                tuned = distribution._replace(step_size=found.step_size)
                (record,) = anneal(x, [tuned], self.num_leapfrog_steps, generator)
                x = record.state.position
                yield record._replace(index=found.index, nfe=found.nfe + record.nfe)

        return run()

    def distributions(
        self,
        targets: Sequence[Target],
        step_sizes: Tensor,
        transports: Sequence[Move] = (),
    ) -> list[IntermediateDistribution]:
        """The distributions of the reported run; each with a transport, or all without.

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
            IntermediateDistribution(target, step_size, count, move)
            for target, step_size, count, move in zip(
                targets, step_sizes, counts, moves, strict=True
            )
        ]
