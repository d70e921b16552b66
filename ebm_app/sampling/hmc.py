r"""Hamiltonian Monte Carlo on B independent chains, run side by side.

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

References: Duane et al. 1987, Phys. Lett. B 195; Neal 2011, arXiv:1206.1901, sections 2 and 3;
Sjoberg et al. 2023, arXiv:2307.14012, for accept steps from a score alone.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ebm_app.utils.errors import NumericalError
from ebm_app.utils.tensors import expand_like, sum_except_batch

#: Function of points (B, *) that treats the chains independently
Field = Callable[[Tensor], Tensor]


class AcceptStep(Protocol):
    """The energy by which proposals are accepted, in nats."""

    def potential(self, position: Tensor, field: Tensor) -> Tensor:
        """Return the part of the energy that depends on the position, (B,)."""

    def energy(self, potential: Tensor, momentum: Tensor, step_size: Tensor) -> Tensor:
        """Return the energy (B,) of a state with this ``potential`` (B,)."""


class Metropolis(NamedTuple):
    """The exact accept step, with U = -log_density.

    Args:
        log_density: (B, *) -> (B,), in nats, up to a constant.
    """

    log_density: Field

    def potential(self, position: Tensor, field: Tensor) -> Tensor:
        return -self.log_density(position)

    def energy(self, potential: Tensor, momentum: Tensor, step_size: Tensor) -> Tensor:
        return potential + 0.5 * sum_except_batch(momentum.square())


class Work:
    """The accept step from a score alone: the energy is h^2 |f|^2 / 8 (see the module)."""

    def potential(self, position: Tensor, field: Tensor) -> Tensor:
        return sum_except_batch(field.double().square())

    def energy(self, potential: Tensor, momentum: Tensor, step_size: Tensor) -> Tensor:
        return potential * step_size.to(potential.device).square() / 8


class Target(NamedTuple):
    """A distribution to sample.

    Attributes:
        field: field of the leapfrog, (B, *) -> (B, *): the gradient of the log density in nats per
            unit of x, or another field such as a learned Stein score.
        accept: accept step, which alone defines what is sampled.
    """

    field: Field
    accept: AcceptStep


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
    state = HMCState(position, field, target.accept.potential(position, field))
    for name, value in state._asdict().items():
        bad = ~value.isfinite().reshape(len(position), -1).all(1)
        if bad.any():
            raise NumericalError(
                f"The {name} of {int(bad.sum())} chains is not finite. Check that the training of "
                "the model converged, or use a smaller step size."
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
        field: f, (B, *) -> (B, *).
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
    generator: torch.Generator,
) -> tuple[HMCState, Tensor]:
    """Run one transition with a fresh momentum; return the new state and the acceptance
    probability (B,).

    A proposal whose energy is not finite is rejected (Neal 2011, section 3.2).

    Args:
        state: chains at this target, from ``init`` or an earlier ``step``.
        step_size: h > 0, () or (B,) float64.
        num_leapfrog_steps: leapfrog steps, at least 1, with one call of the field each.
        generator: source of randomness, on the device of the position.
    """
    energy = target.accept.energy
    momentum = torch.empty_like(state.position).normal_(generator=generator)
    start = energy(state.potential, momentum, step_size)
    position, momentum, field = leapfrog(
        state.position, momentum, state.field, target.field, step_size, num_leapfrog_steps
    )
    proposal = HMCState(position, field, target.accept.potential(position, field))
    change = energy(proposal.potential, momentum, step_size) - start
    probability = torch.where(change.isfinite(), torch.exp(-change).clamp(max=1.0), 0.0)
    is_accepted = torch.empty_like(probability).uniform_(generator=generator) < probability
    rows = (
        torch.where(expand_like(is_accepted, new).bool(), new, old)
        for new, old in zip(proposal, state, strict=True)
    )
    return HMCState(*rows), probability


def adapt(scale: Tensor, probability: Tensor, target: float, growth: float = 1.1) -> Tensor:
    """Return the next scale s growth^((a - target) / target) of the step sizes, with a the
    acceptance probability.

    The scale settles where the mean of a is the target. A scale () uses the mean over the chains,
    a scale (B,) the value of each chain. During adaptation the chains do not leave their density
    invariant: freeze the step size before using them. In high dimension a target of 0.65 is
    optimal for a fixed distribution (Beskos et al. 2013, arXiv:1001.4460).

    Args:
        scale: () or (B,). probability: (B,), of the latest transition.
    """
    rate = probability if scale.ndim else probability.mean()
    return scale * growth ** ((rate.to(scale) - target) / target)
