r"""Hamiltonian Monte Carlo on B independent chains, run side by side.

A density exp(log_density(x)) is extended by a momentum v ~ N(0, M), M diagonal. The joint density
is exp(-H), with the energy in nats

    H(x, v) = -log_density(x) + v^T M^{-1} v / 2.

A transition draws v, follows the dynamics by leapfrog steps of size h and accepts the end point
with probability min(1, exp(H_start - H_end)).

The field f that drives the leapfrog need not be the gradient of log_density. The kicks
v + h f(x) / 2 and the drifts x + h M^{-1} v are shears, so each has Jacobian determinant 1, and
flipping the momentum runs the trajectory backwards, for any f that depends on the position of its
own chain alone. The accept step, which reads log_density only, therefore leaves exp(log_density)
invariant whatever f is; a field far from the gradient costs acceptance, not validity.

References: Duane et al. 1987, Phys. Lett. B 195; Neal 2011, arXiv:1206.1901, sections 2 and 3.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ebm_app.io.errors import NumericalError
from ebm_app.numerics.tensors import expand_like, sum_except_batch

Field = Callable[[Tensor], Tensor]


class Target(NamedTuple):
    """What a chain needs to know of a density.

    Both callables are deterministic, treat the B chains independently and are called with autograd
    switched off; one that needs it switches it on, as that of ``target_from_log_density`` does.

    Attributes:
        log_density: (B, *) -> (B,), in nats, up to a constant. It alone fixes what is sampled.
        gradient: (B, *) -> (B, *), the leapfrog's field: the gradient of ``log_density``, in nats
            per unit of x, or any other field, such as a learned Stein score (see the module).
    """

    log_density: Field
    gradient: Field


class Phase(NamedTuple):
    """A point of a leapfrog trajectory: position, momentum and the field there, each (B, *)."""

    position: Tensor
    momentum: Tensor
    gradient: Tensor


class HMCState(NamedTuple):
    """The chains: position (B, *), with its log density (B,) in nats and field (B, *) cached."""

    position: Tensor
    log_density: Tensor
    gradient: Tensor


class HMCInfo(NamedTuple):
    """Diagnostics of one transition, each (B,).

    Attributes:
        acceptance_probability: min(1, exp(-energy_error)); 0 where the energy error is not finite.
        is_accepted: whether the proposal became the state.
        energy_error: H_end - H_start in nats, as computed (it may be infinite or NaN).
    """

    acceptance_probability: Tensor
    is_accepted: Tensor
    energy_error: Tensor


Chains = TypeVar("Chains", Phase, HMCState)


def target_from_log_density(log_density: Field) -> Target:
    """Target whose field is the exact gradient d log_density / dx, by reverse-mode autograd.

    Args:
        log_density: (B, *) -> (B,) in nats; row i depends on x_i alone.
    """

    def gradient(position: Tensor) -> Tensor:
        with torch.enable_grad():
            x = position.detach().requires_grad_()
            return torch.autograd.grad(log_density(x).sum(), x)[0]

    return Target(log_density, gradient)


@torch.no_grad()
def init(position: Tensor, target: Target) -> HMCState:
    """Start chains at ``position`` (B, *); costs one call of the field.

    Raises:
        ValueError: if ``target`` returns a wrong shape or dtype, or if the position, its log
            density or its field is not finite.
    """
    position = position.detach()
    state = HMCState(position, target.log_density(position), target.gradient(position))
    if state.log_density.shape != position.shape[:1]:
        raise ValueError(f"log_density must return (B,), not {tuple(state.log_density.shape)}")
    if state.gradient.shape != position.shape or state.gradient.dtype != position.dtype:
        raise ValueError("gradient must return the shape and the dtype of the position")
    _require_finite(state)
    return state


def leapfrog(
    start: Phase,
    field: Field,
    step_size: Tensor | float,
    num_leapfrog_steps: int,
    inverse_mass: Tensor | float = 1.0,
) -> Phase:
    """Velocity-form leapfrog: v += h f(x) / 2; x += h M^{-1} v; v += h f(x) / 2, repeated.

    Energy error O(h^2) if f is the gradient. Neal 2011, arXiv:1206.1901, section 2.3.

    Args:
        start: position, momentum and field (B, *); the cached field saves one call.
        field: f, (B, *) -> (B, *).
        step_size: h > 0, a float, () or (B,).
        num_leapfrog_steps: number of steps, and of calls of ``field``; at least 1.
        inverse_mass: diagonal of M^{-1}, a float or broadcastable to (1, *).

    Raises:
        ValueError: for a step size or a number of steps outside these ranges.
    """
    if num_leapfrog_steps < 1:
        raise ValueError(f"num_leapfrog_steps must be at least 1, not {num_leapfrog_steps}")
    position, momentum, gradient = start
    h = _step_size_like(step_size, position)
    for _ in range(num_leapfrog_steps):
        momentum = momentum + 0.5 * h * gradient
        position = position + h * inverse_mass * momentum
        gradient = field(position)
        momentum = momentum + 0.5 * h * gradient
    return Phase(position, momentum, gradient)


@torch.no_grad()
def step(
    state: HMCState,
    target: Target,
    step_size: Tensor | float,
    num_leapfrog_steps: int,
    generator: torch.Generator,
    inverse_mass: Tensor | float = 1.0,
) -> tuple[HMCState, HMCInfo]:
    """One transition with a fresh momentum; it leaves exp(target.log_density) invariant.

    A proposal whose energy is not finite has acceptance probability 0: the trajectory back from it
    is the same one, so the transition stays reversible. Neal 2011, arXiv:1206.1901, section 3.2.

    Args:
        state: chains at this target, from ``init`` or an earlier ``step``.
        target: the density and the leapfrog's field.
        step_size: h > 0 in units of x / sqrt(M^{-1}), a float, () or (B,).
        num_leapfrog_steps: leapfrog steps, each one call of the field; at least 1.
        generator: source of randomness, on the device of the position.
        inverse_mass: diagonal of M^{-1} > 0, a float or broadcastable to (1, *).

    Raises:
        ValueError: if ``state`` is not finite, or a setting lies outside its range.
        RuntimeError: if ``inverse_mass`` does not broadcast to (1, *).
    """
    _require_finite(state)
    position, inverse_mass = state.position, _inverse_mass_like(inverse_mass, state.position)
    noise = torch.empty_like(position).normal_(generator=generator)
    start = Phase(position, noise / inverse_mass.sqrt(), state.gradient)
    end = leapfrog(start, target.gradient, step_size, num_leapfrog_steps, inverse_mass)
    proposal = HMCState(end.position, target.log_density(end.position), end.gradient)

    energy_start = _kinetic_energy(start.momentum, inverse_mass) - state.log_density
    energy_end = _kinetic_energy(end.momentum, inverse_mass) - proposal.log_density
    energy_error = energy_end - energy_start
    probability = torch.exp(-energy_error).clamp(max=1.0)  # the min of the Metropolis rule
    probability = torch.where(energy_error.isfinite(), probability, 0.0)
    is_accepted = torch.empty_like(probability).uniform_(generator=generator) < probability
    new_state = chosen(is_accepted, proposal, state)
    return new_state, HMCInfo(probability, is_accepted, energy_error)


def chosen(is_first: Tensor, first: Chains, second: Chains) -> Chains:
    """For each chain its row of ``first`` where ``is_first`` (B,), else of ``second``; both are
    named tuples of tensors (B, *) or (B,)."""
    rows = (
        torch.where(expand_like(is_first, one).bool(), one, other)
        for one, other in zip(first, second, strict=True)
    )
    return type(first)(*rows)


def adapt(
    step_size: Tensor,
    acceptance_probability: Tensor,
    target_acceptance: float = 0.65,
    factor: float = 1.05,
) -> Tensor:
    """Next step size h * factor^r with r = (a - target) / (1 - target), a the acceptance seen.

    It settles where the mean of a is the target. A step size () reads the mean over the chains;
    one of shape (B,) reads each chain's own value, whose mean is then taken over time. A chain
    under adaptation does not leave its density invariant: freeze the step before reporting.
    The default is the optimal rate in high dimension (Beskos et al. 2013, arXiv:1001.4460).

    Args:
        step_size: h, () or (B,).
        acceptance_probability: (B,), of the transition just made with h.
        target_acceptance: in (0, 1).
        factor: > 1.

    Raises:
        ValueError: for a target or a factor outside these ranges, or a step size of another shape.
    """
    if not 0 < target_acceptance < 1 < factor:
        raise ValueError("adapt needs 0 < target_acceptance < 1 < factor")
    if step_size.shape not in (torch.Size(), acceptance_probability.shape):
        raise ValueError(f"step_size must have shape () or (B,), not {tuple(step_size.shape)}")
    observed = acceptance_probability if step_size.ndim else acceptance_probability.mean()
    excess = (observed.to(step_size) - target_acceptance) / (1 - target_acceptance)
    return step_size * factor**excess


def _kinetic_energy(momentum: Tensor, inverse_mass: Tensor) -> Tensor:
    return 0.5 * sum_except_batch(inverse_mass * momentum.square())


def _step_size_like(step_size: Tensor | float, position: Tensor) -> Tensor:
    if not isinstance(step_size, Tensor):
        step_size = torch.tensor(step_size, dtype=torch.float64)
    if step_size.shape not in (torch.Size(), position.shape[:1]):
        raise ValueError(f"step_size must have shape () or (B,), not {tuple(step_size.shape)}")
    if not bool(((step_size > 0) & step_size.isfinite()).all()):
        raise ValueError("step_size must be positive and finite")
    return expand_like(step_size, position)


def _inverse_mass_like(inverse_mass: Tensor | float, position: Tensor) -> Tensor:
    inverse_mass = torch.as_tensor(inverse_mass, dtype=position.dtype, device=position.device)
    inverse_mass = inverse_mass.expand(1, *position.shape[1:])
    if not bool(((inverse_mass > 0) & inverse_mass.isfinite()).all()):
        raise ValueError("inverse_mass must be positive and finite")
    return inverse_mass


def _require_finite(state: HMCState) -> None:
    for name, value in state._asdict().items():
        is_finite = value.flatten(1).isfinite().all(1) if value.ndim > 1 else value.isfinite()
        if not bool(is_finite.all()):
            count = int((~is_finite).sum())
            raise NumericalError(
                f"the {name} of the current state is not finite in {count} chains: the training "
                "of the model has diverged, or the steps are too large"
            )
