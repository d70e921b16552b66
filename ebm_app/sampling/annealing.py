r"""Annealing: move chains from a reference to a target through intermediate distributions.

The chains start from x0, exact samples of a reference p_0. Each distribution p_1, ..., p_K is
known up to a constant. Distribution k moves the chains by its transport, a bijection T_k (such as
the identity) or a draw from p(y | x), then runs a few transitions that leave p_k invariant.

``anneal`` is the loop of annealed HMC and of annealed importance sampling. With an exact accept
step the importance weight of a chain (in nats, up to the constants of p_0 and p_K) is a sum over
its records: with y_k = T_k(x_{k-1}),

    log w = sum_k [log p_k(y_k) - log p_{k-1}(x_{k-1}) + log |det T_k'(x_{k-1})|],

where the terms are ``-entry.potential`` of record k, ``-state.potential`` of the record before it
and ``log_ratio`` of record k. For a random transport the log ratio is log q(x | y) - log p(y | x),
with q the density of the reverse transport. Because the transitions are reversible, the same loop
runs the chains backwards: through the distributions in reverse order, with reverse transports.

References: Neal 2001, Annealed importance sampling, arXiv:physics/9803008; Neal 2011,
arXiv:1206.1901; Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612, for the transport.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.sampling import hmc
from ebm_app.sampling.hmc import HMCState, Target

#: (positions (B, *), generator) -> positions (B, *) and log ratio (B,) float64, in nats
Transport = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


def stay(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the positions unchanged: the identity as a transport."""
    return x, torch.zeros(len(x), dtype=torch.float64, device=x.device)


class IntermediateDistribution(NamedTuple):
    """A distribution between the reference and the target.

    Attributes:
        target: field and accept step. step_size: leapfrog step, () float64, before scaling.
        num_steps: HMC transitions; 0 evaluates the target only.
        transport: move of the chains from the previous distribution.
        adapt: (scale, acceptance probabilities (B,)) -> next scale; None keeps the scale, which
            the invariance of the density requires.
    """

    target: Target
    step_size: Tensor
    num_steps: int
    transport: Transport = stay
    adapt: Callable[[Tensor, Tensor], Tensor] | None = None


class AnnealingRecord(NamedTuple):
    """The chains at one distribution.

    Attributes:
        entry, state: the chains before and after the transitions.
        log_ratio: log ratio of the transport, (B,).
        acceptance: mean acceptance probability; NaN without transitions.
        step_size: scaled step size after the transitions, () or (B,).
        nfe: calls of the field, 1 + num_steps * num_leapfrog_steps.
    """

    entry: HMCState
    state: HMCState
    log_ratio: Tensor
    acceptance: float
    step_size: Tensor
    nfe: int


def anneal(
    x0: Tensor,
    distributions: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    generator: torch.Generator,
    scale: Tensor | float = 1.0,
) -> Iterator[AnnealingRecord]:
    """Run the chains through the distributions and yield a record of each.

    Args:
        x0: samples of the reference, (B, *).
        num_leapfrog_steps: leapfrog steps of a transition, at least 1.
        generator: source of randomness, on the device of ``x0``.
        scale: factor () or (B,) of the step sizes. ``adapt`` changes it for the transitions and
            distributions that follow.

    Raises:
        NumericalError: if the potential or field is not finite at the start of a distribution.
    """
    position, scale = x0, torch.as_tensor(scale, dtype=torch.float64)
    for target, step_size, num_steps, transport, adapt in distributions:
        position, log_ratio = transport(position, generator)
        entry = state = hmc.init(position, target)
        rates = []
        for _ in range(num_steps):
            h = scale * step_size
            state, probability = hmc.step(state, target, h, num_leapfrog_steps, generator)
            rates.append(probability.mean().item())
            scale = scale if adapt is None else adapt(scale, probability)
        position = state.position
        acceptance = sum(rates) / num_steps if rates else float("nan")
        nfe = 1 + num_steps * num_leapfrog_steps
        yield AnnealingRecord(entry, state, log_ratio, acceptance, scale * step_size, nfe)
