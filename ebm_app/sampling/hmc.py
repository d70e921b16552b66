r"""Hamiltonian Monte Carlo (HMC) on B independent chains, and annealing with HMC transitions.

A density exp(-U(x)) is extended by a momentum v ~ N(0, I) with the energy in nats

    H(x, v) = U(x) + |v|^2 / 2.

A transition draws v, follows the dynamics by leapfrog steps of size h and accepts the end point
with probability min(1, exp(H_start - H_end)).

The field f of the leapfrog need not be -grad U. The kicks v + h f(x) / 2 and the drifts x + h v
are shears of determinant 1, and flipping the momentum reverses the trajectory, for any f that
depends on the position of its own chain alone. An accept step that evaluates U therefore leaves
exp(-U) invariant for any f; a field far from the gradient only lowers the acceptance.

If only a score is known, the work of f along the trajectory, sum (f_k + f_{k+1}) / 2 .
(x_{k+1} - x_k), replaces the change of -U. The energy error then telescopes to the two ends,

    H_end - H_start = h^2 / 8 (|f_end|^2 - |f_start|^2),

and the density is invariant up to the second-order error of that rule.

``anneal`` moves chains from exact samples x_0 of a reference p_0 through distributions p_1, ...,
p_K, each known up to a constant: by a transport T_k, which is a bijection (such as the identity)
or a draw from p(y | x), then by transitions that leave p_k invariant. It is the loop of annealed
HMC and of annealed importance sampling. Let y_k = T_k(x_{k-1}). If the log densities are known,
the log importance weight of a chain in nats, up to the constants of p_0 and p_K, is

    log w = sum_k [log p_k(y_k) - log p_{k-1}(x_{k-1}) + log |det T_k'(x_{k-1})|],

where the terms are ``-entry.potential`` of record k, ``-state.potential`` of the record before it
and ``log_ratio`` of record k. For a random transport the log ratio is log q(x | y) - log p(y | x),
with q the density of the reverse transport. The transitions are reversible, so the same loop runs
the chains backwards, through the distributions in reverse order with reverse transports.

References: Neal 2011, arXiv:1206.1901, sections 2 and 3; Sjoberg et al. 2023, arXiv:2307.14012,
for accept steps from a score alone; Neal 2001, arXiv:physics/9803008, for the weights;
Vaikuntanathan and Jarzynski 2011, arXiv:1101.2612, for the transport.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.utils.errors import NumericalError
from ebm_app.utils.random import Noise
from ebm_app.utils.tensors import copy_to, expand_like, sum_except_batch

#: Mean acceptance probability below which chains are stuck
MIN_ACCEPTANCE = 0.1
#: Mean move at a temperature below which chains are stuck, in standard deviations of the noise
MIN_MOVE = 0.01
#: Function of points (B, *) that treats the chains independently
Field = Callable[[Tensor], Tensor]
#: (positions (B, *), noise) -> positions (B, *) and log ratio (B,) float64, in nats
Transport = Callable[[Tensor, Noise], tuple[Tensor, Tensor]]


class Target(NamedTuple):
    """A distribution to sample.

    Attributes:
        field: field of the leapfrog, (B, *) -> (B, *): the gradient of the log density in nats per
            unit of x, or another field such as a learned Stein score.
        log_density: (B, *) -> (B,), in nats, up to a constant, for the exact accept step; None
            accepts by the work of the field.
    """

    field: Field
    log_density: Field | None = None

    def potential(self, position: Tensor, field: Tensor) -> Tensor:
        """Return U(x), or |f|^2 for the work: (B,)."""
        if self.log_density is None:
            return sum_except_batch(field.double().square())
        return -self.log_density(position)

    def energy(self, potential: Tensor, momentum: Tensor, step_size: Tensor) -> Tensor:
        """Return the energy H, or h^2 |f|^2 / 8 for the work: (B,)."""
        if self.log_density is None:
            return potential * step_size.to(potential.device).square() / 8
        return potential + 0.5 * sum_except_batch(momentum.square())


class HMCState(NamedTuple):
    """Chains at ``position`` (B, *), with ``field`` (B, *) and ``potential`` (B,) there."""

    position: Tensor
    field: Tensor
    potential: Tensor


@torch.no_grad()
def init(position: Tensor, target: Target) -> HMCState:
    """Start chains at ``position`` (B, *), with one call of the field.

    Raises:
        NumericalError: if the position, its field or its potential is not finite.
    """
    position = position.detach()
    field = target.field(position)
    state = HMCState(position, field, target.potential(position, field))
    bad = torch.stack([~x.isfinite().reshape(len(position), -1).all(1) for x in state])
    if bad.any():  # only once, because each check synchronises with the GPU
        counts = dict(zip(state._fields, bad.sum(1).tolist(), strict=True))
        name = next(name for name, count in counts.items() if count)
        raise NumericalError(
            f"The {name} of {counts[name]} chains is not finite. Check that the training of the "
            "model converged, or use a smaller step size."
        )
    return state


def leapfrog(
    position: Tensor,
    momentum: Tensor,
    force: Tensor,
    field: Field,
    step_size: Tensor,
    num_leapfrog_steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Velocity-form leapfrog: v += h f(x) / 2; x += h v; v += h f(x) / 2, repeated.

    The energy error is O(h^2) if f is the gradient. Neal 2011, arXiv:1206.1901, section 2.3.

    Args:
        position, momentum, force: x, v and f(x) at the start, (B, *) each.
        step_size: h > 0, () or (B,).

    Returns:
        x, v and f(x) at the end.
    """
    h = expand_like(step_size, position)
    for _ in range(num_leapfrog_steps):
        momentum = momentum + 0.5 * h * force
        position = position + h * momentum
        force = field(position)
        momentum = momentum + 0.5 * h * force
    return position, momentum, force


@torch.no_grad()
def step(
    state: HMCState,
    target: Target,
    step_size: Tensor,
    num_leapfrog_steps: int,
    noise: Noise,
) -> tuple[HMCState, Tensor]:
    """Run one transition with a fresh momentum; return the new state and the acceptance
    probability (B,).

    A proposal whose energy is not finite is rejected (Neal 2011, section 3.2).

    Args:
        state: chains at this target, from ``init`` or an earlier ``step``.
        step_size: h > 0, () or (B,) float64.
        num_leapfrog_steps: leapfrog steps, at least 1, with one call of the field each.
        noise: source of random numbers.
    """
    momentum = noise.normal_like(state.position)
    start = target.energy(state.potential, momentum, step_size)
    position, momentum, field = leapfrog(
        state.position, momentum, state.field, target.field, step_size, num_leapfrog_steps
    )
    proposal = HMCState(position, field, target.potential(position, field))
    change = target.energy(proposal.potential, momentum, step_size) - start
    probability = torch.where(change.isfinite(), torch.exp(-change).clamp(max=1.0), 0.0)
    is_accepted = noise.uniform_like(probability) < probability
    rows = (
        torch.where(expand_like(is_accepted, new).bool(), new, old)
        for new, old in zip(proposal, state, strict=True)
    )
    return HMCState(*rows), probability


def adapt(scale: Tensor, probability: Tensor, target: float, growth: float = 1.1) -> Tensor:
    """Return the next scale of the step sizes, s growth^((a - target) / target), where a is the
    acceptance probability. Its mean converges to the target.

    During adaptation the chains do not leave their density invariant: freeze the step size before
    using them.

    Args:
        scale: () to use the mean acceptance, or (B,) to adapt each chain.
        probability: (B,), of the latest transition.
    """
    rate = probability if scale.ndim else probability.mean()
    return scale * growth ** ((rate.to(scale) - target) / target)


def stay(x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Return the positions unchanged: the identity as a transport."""
    return x, torch.zeros(len(x), dtype=torch.float64, device=x.device)


class IntermediateDistribution(NamedTuple):
    """A distribution between the reference and the target.

    Attributes:
        target: the distribution.
        step_size: leapfrog step, () float64, before scaling.
        num_steps: HMC transitions; 0 evaluates the target only.
        transport: move of the chains from the previous distribution.
        adapt: (scale, acceptance probabilities (B,)) -> next scale; None keeps the scale.
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
    """

    entry: HMCState
    state: HMCState
    log_ratio: Tensor
    acceptance: float
    step_size: Tensor

    def move(self) -> Tensor:
        """Return the root mean square change of the positions in the transitions: ()."""
        return (self.state.position - self.entry.position).square().mean().sqrt()


def anneal(
    x0: Tensor,
    distributions: Sequence[IntermediateDistribution],
    num_leapfrog_steps: int,
    noise: Noise,
    scale: Tensor | float = 1.0,
) -> Iterator[AnnealingRecord]:
    """Run chains from samples ``x0`` (B, *) of the reference through the distributions and yield
    a record of each.

    Args:
        scale: factor () or (B,) of the step sizes. ``adapt`` changes it for the transitions and
            distributions that follow.

    Raises:
        NumericalError: if the potential or field is not finite at the start of a distribution.
    """
    position, scale = x0, copy_to(torch.as_tensor(scale, dtype=torch.float64), x0.device)
    for target, step_size, num_steps, transport, adapt_scale in distributions:
        position, log_ratio = transport(position, noise)
        entry = state = init(position, target)
        rates = []
        for _ in range(num_steps):
            state, probability = step(state, target, scale * step_size, num_leapfrog_steps, noise)
            rates.append(probability.mean())
            scale = scale if adapt_scale is None else adapt_scale(scale, probability)
        position = state.position
        acceptance = torch.stack(rates).mean().item() if rates else float("nan")
        yield AnnealingRecord(entry, state, log_ratio, acceptance, scale * step_size)


def warn_if_stuck(acceptance: Tensor, moves: Tensor, small: str, large: str) -> None:
    """Warn if chains hardly moved in the first or the second half of the temperatures.

    Args:
        acceptance: acceptance probabilities (K,).
        moves: moves (K,) of the transitions, in standard deviations of the noise.
        small, large: what to use if the acceptance is low, and if only the moves are.
    """
    rate, size = (min(half.mean().item() for half in x.chunk(2)) for x in (acceptance, moves))
    half = "in half of the temperatures"
    if rate < MIN_ACCEPTANCE:
        text = f"The chains have a mean acceptance of {rate:.2g} {half}, below {MIN_ACCEPTANCE}"
        warnings.warn(f"{text}, and hardly move: use {small}.", stacklevel=2)
    elif size < MIN_MOVE:
        text = f"The chains move by {size:.2g} standard deviations of the noise {half}"
        warnings.warn(f"{text}, below {MIN_MOVE}: use {large}.", stacklevel=2)
