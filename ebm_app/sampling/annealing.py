r"""Annealing: carry chains from a reference to a target through intermediate distributions.

Given densities p_1, ..., p_K, each known up to a constant, the chains start from x0, exact samples
of a reference p_0. Distribution k moves them by its transport, a kernel K_k with a kernel L_k for
the way back (or the identity), then takes a few transitions that leave p_k invariant.

``anneal`` is the one loop. Each record it yields holds the log density of its distribution where
the transitions there began, so that the importance weight of a chain (annealed importance
sampling; in nats, up to the constants of p_0 and p_K) is a sum over its records: with
y_k ~ K_k(. | x_{k-1}),

    log w = sum_k [log p_k(y_k) - log p_{k-1}(x_{k-1}) + log L_k(x_{k-1} | y_k)
                   - log K_k(y_k | x_{k-1})],

the terms being ``entry_log_density`` of record k, ``state.log_density`` of the record before it,
and ``log_ratio`` of record k, which is log |det T'| for a bijection T. Without weights the samples
are approximate: the chains lag behind the distributions. Because the transitions are reversible,
the same loop through the distributions in reverse, by the kernels back, runs the chains backwards.

References: Neal 2001, Annealed importance sampling, arXiv:physics/9803008; Neal 2011,
arXiv:1206.1901; Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612, for the transport.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.sampling import hmc
from ebm_app.sampling.hmc import HMCState, Proposal, Target

#: (scale of the step sizes () or (B,), acceptance probabilities (B,)) -> the next scale
Controller = Callable[[Tensor, Tensor], Tensor]
#: (positions (B, *), generator) -> positions (B, *) by a kernel, and the log ratio (B,) float64 of
#: the kernel back and that kernel
Move = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


def stay(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The identity as a transport."""
    return x, torch.zeros(len(x), dtype=torch.float64, device=x.device)


class IntermediateDistribution(NamedTuple):
    """One distribution between the reference and the target, and what the chains do there.

    Attributes:
        target: its density and field.
        step_size: leapfrog step h > 0, () or (B,).
        num_steps: HMC transitions; with 0 the density is evaluated and nothing moves.
        transport: how the chains come here.
    """

    target: Target
    step_size: Tensor
    num_steps: int
    transport: Move = stay


class AnnealingRecord(NamedTuple):
    """What happened at one distribution.

    Attributes:
        index: 0, ..., K - 1.
        state: the chains after the transitions; position (B, *).
        entry_log_density: (B,), log density in nats where the transitions began.
        log_ratio: (B,), of the kernels of the transport, in nats.
        acceptance: (), mean acceptance probability over chains and transitions; NaN without any.
        scale, step_size: of the steps, and their size, after the transitions, () or (B,).
        nfe: calls of the field, each on the whole batch: 1 + num_steps * num_leapfrog_steps.
    """

    index: int
    state: HMCState
    entry_log_density: Tensor
    log_ratio: Tensor
    acceptance: Tensor
    scale: Tensor
    step_size: Tensor
    nfe: int


def keep(scale: Tensor, acceptance_probability: Tensor) -> Tensor:
    """The controller of a reported run: the step sizes stay as given."""
    return scale


def anneal(
    x0: Tensor,
    distributions: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    controller: Controller = keep,
    scale: Tensor | None = None,
    error: Callable[[Proposal], Tensor] = hmc.energy_error,
) -> Iterator[AnnealingRecord]:
    """Run the chains through the distributions; work is done as the records are asked for.

    The step at a distribution is scale * distribution.step_size. The controller renews the scale
    after each transition, and the next distribution inherits it.

    Args:
        x0: (B, *), samples of the reference.
        distributions: K of them, in order.
        num_leapfrog_steps: leapfrog steps of a transition, at least 1.
        generator: source of randomness, on the device of ``x0``.
        controller: (scale, acceptance probabilities (B,)) -> scale. Any but ``keep`` makes the run
            a pilot: its transitions do not leave the distributions invariant.
        scale: at the first transition, () or (B,); 1 if not given.
        error: of the energy, one of ``hmc.ACCEPTANCES``.

    Raises:
        ValueError: where a density or field is not finite at the start of a transition.
    """
    position = x0
    factor = torch.ones((), dtype=torch.float64) if scale is None else scale
    for index, (target, step_size, num_steps, transport) in enumerate(distributions):
        position, log_ratio = transport(position, generator)
        state = hmc.init(position, target)
        entry, acceptance = state.log_density, torch.full((), torch.nan)
        for step in range(num_steps):
            used = factor * step_size
            state, info = hmc.step(state, target, used, num_leapfrog_steps, generator, error=error)
            mean = info.acceptance_probability.mean()
            acceptance = mean if step == 0 else acceptance + (mean - acceptance) / (step + 1)
            factor = controller(factor, info.acceptance_probability)
        position = state.position
        nfe = 1 + num_steps * num_leapfrog_steps
        last = factor * step_size
        yield AnnealingRecord(index, state, entry, log_ratio, acceptance, factor, last, nfe)


def pilot(
    x0: Tensor,
    distributions: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    warmup_steps: int = 10,
) -> Iterator[AnnealingRecord]:
    """Find step sizes by a run of ``anneal`` whose scales follow the acceptance: fresh chains that
    keep the sizes found leave every distribution invariant.

    Every chain adapts a scale of its own. The ``step_size`` () of a record is the median over the
    chains, which a few chains that are stuck, or meet no resistance, do not move. There are some
    transitions more than in ``distributions``, up to four at each, so that little changes from one
    to the next, and ``warmup_steps`` at the first.

    Args and errors as in ``anneal``. The step sizes () of ``distributions`` are the first guess;
    once the scales have settled, only their ratios matter.
    """
    num = len(distributions)
    more = min(4 * num, 100)
    extra = [b - a for a, b in pairwise(more * k // num for k in range(num + 1))]
    extra[0] += warmup_steps
    longer = [
        distribution._replace(num_steps=distribution.num_steps + count)
        for distribution, count in zip(distributions, extra, strict=True)
    ]
    controller = partial(hmc.adapt, factor=1.1)
    scale = torch.ones(len(x0), dtype=torch.float64)
    for record in anneal(x0, longer, num_leapfrog_steps, generator, controller, scale):
        yield record._replace(step_size=record.step_size.quantile(0.5))
