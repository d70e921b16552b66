r"""Annealing: carry chains from a reference to a target through intermediate distributions.

Given densities p_1, ..., p_K, each known up to a constant, the chains start from x0, exact samples
of a reference p_0. Distribution k moves them by its transport, a bijection T_k (or the identity)
or a draw from p(y | x), then takes a few transitions that leave p_k invariant.

``anneal`` is the one loop, of samplers and of annealed importance sampling. Each record it yields
holds the log density of its distribution where the transitions there began, so that the importance
weight of a chain (in nats, up to the constants of p_0 and p_K) is a sum over its records: with
y_k = T_k(x_{k-1}),

    log w = sum_k [log p_k(y_k) - log p_{k-1}(x_{k-1}) + log |det T_k'(x_{k-1})|],

the terms being ``entry_log_density`` of record k, ``state.log_density`` of the record before it,
and ``log_det`` of record k, where a random transport has log q(x | y) - log p(y | x), q being its
way back. Because the transitions are reversible, the same loop through the distributions in
reverse, by the ways back, runs the chains backwards.

References: Neal 2001, Annealed importance sampling, arXiv:physics/9803008; Neal 2011,
arXiv:1206.1901; Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612, for the transport.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.sampling import hmc
from ebm_app.sampling.hmc import HMCState, Target

#: (positions (B, *), source of randomness) -> positions (B, *), and the log |det| (B,) float64 of
#: a bijection or, of a draw, what takes its place
Move = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


def stay(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The identity as a transport."""
    return x, torch.zeros(len(x), dtype=torch.float64, device=x.device)


class IntermediateDistribution(NamedTuple):
    """One distribution between the reference and the target, and what the chains do there.

    Attributes:
        target: its density and field.
        step_size: leapfrog step h > 0, () float64, before it is scaled.
        num_steps: HMC transitions; with 0 the density is evaluated and nothing moves.
        transport: how the chains come here.
        adapt: (scale, acceptance probabilities (B,)) -> the scale after a transition; None keeps
            it, without which the transitions do not leave the density invariant.
    """

    target: Target
    step_size: Tensor
    num_steps: int
    transport: Move = stay
    adapt: Callable[[Tensor, Tensor], Tensor] | None = None


class AnnealingRecord(NamedTuple):
    """What happened at one distribution.

    Attributes:
        state: the chains after the transitions; position (B, *).
        entry_log_density: (B,), log density in nats where the transitions began.
        log_det: (B,), of the transport, in nats; see ``Move``.
        acceptance: mean acceptance probability over chains and transitions; NaN without any.
        step_size: scaled, after the transitions, () or (B,).
        nfe: calls of the field, each on the whole batch: 1 + num_steps * num_leapfrog_steps.
    """

    state: HMCState
    entry_log_density: Tensor
    log_det: Tensor
    acceptance: float
    step_size: Tensor
    nfe: int


def anneal(
    x0: Tensor,
    distributions: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    scale: Tensor | float = 1.0,
    acceptance: str = "energy",
) -> Iterator[AnnealingRecord]:
    """Run the chains through the distributions; work is done as the records are asked for.

    Args:
        x0: (B, *), samples of the reference.
        num_leapfrog_steps: leapfrog steps of a transition, at least 1.
        generator: source of randomness, on the device of ``x0``.
        scale: () or (B,); the step at a distribution is scale * step_size. The next distribution
            inherits what ``adapt`` has made of it.
        acceptance: one of ``hmc.ACCEPTANCES``.

    Raises:
        NumericalError: where a density or field is not finite at the start of a distribution.
    """
    position, scale = x0, torch.as_tensor(scale, dtype=torch.float64)
    for target, step_size, num_steps, transport, adapt in distributions:
        position, log_det = transport(position, generator)
        state = hmc.init(position, target)
        entry, accepted = state.log_density, []
        for _ in range(num_steps):
            used = scale * step_size
            state, probability = hmc.step(
                state, target, used, num_leapfrog_steps, generator, acceptance
            )
            accepted.append(probability.mean().item())
            scale = scale if adapt is None else adapt(scale, probability)
        position = state.position
        mean = sum(accepted) / num_steps if accepted else float("nan")
        nfe = 1 + num_steps * num_leapfrog_steps
        yield AnnealingRecord(state, entry, log_det, mean, scale * step_size, nfe)
