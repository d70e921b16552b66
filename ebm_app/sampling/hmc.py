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

Where only a score is known, the accept step may read the work that f does along the trajectory,
sum (f_k + f_{k+1}) / 2 . (x_{k+1} - x_k), for the change of log_density. The energy error then
telescopes to the fields at the ends,

    H_end - H_start = h^2 / 8 (|f_end|^2 - |f_start|^2)      (M = I),

and the transition is invariant up to the second-order error of that rule.

References: Duane et al. 1987, Phys. Lett. B 195; Neal 2011, arXiv:1206.1901, sections 2 and 3;
Sjoberg et al. 2023, arXiv:2307.14012, for accept steps from a score alone.
"""

from collections.abc import Callable
from typing import NamedTuple

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


def score_target(score: Field) -> Target:
    """A target of which the score alone is known, for ``work_error`` and ``no_error``."""
    return Target(lambda x: x.new_zeros(len(x), dtype=torch.float64), score)


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


class Proposal(NamedTuple):
    """A trajectory: its ends, and log density (B,) there, the step h and M^{-1}."""

    start: Phase
    end: Phase
    start_log_density: Tensor
    end_log_density: Tensor
    step_size: Tensor
    inverse_mass: Tensor


def energy_error(proposal: Proposal) -> Tensor:
    """H_end - H_start by the log density: (B,)."""
    start = _kinetic_energy(proposal.start.momentum, proposal.inverse_mass)
    end = _kinetic_energy(proposal.end.momentum, proposal.inverse_mass)
    return (end - proposal.end_log_density) - (start - proposal.start_log_density)


def work_error(proposal: Proposal) -> Tensor:
    """H_end - H_start by the work of the field, for M = I: (B,) float64."""
    start, end = (
        sum_except_batch(phase.gradient.double().square())
        for phase in (proposal.start, proposal.end)
    )
    return proposal.step_size.square() / 8 * (end - start)


def no_error(proposal: Proposal) -> Tensor:
    """0: every proposal is accepted: (B,) float64."""
    return torch.zeros_like(proposal.end_log_density, dtype=torch.float64)


#: how a trajectory's energy error is found, by the name of a sampler's setting
ACCEPTANCES: dict[str, Callable[[Proposal], Tensor]] = {
    "work": work_error,
    "energy": energy_error,
    "none": no_error,
}


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
    """
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
    error: Callable[[Proposal], Tensor] = energy_error,
) -> tuple[HMCState, HMCInfo]:
    """One transition with a fresh momentum; by ``energy_error`` it leaves exp(target.log_density)
    invariant.

    A proposal whose energy is not finite has acceptance probability 0 (Neal 2011, section 3.2).

    Args:
        state: chains at this target, from ``init`` or an earlier ``step``.
        target: the density and the leapfrog's field.
        step_size: h > 0 in units of x / sqrt(M^{-1}), a float, () or (B,).
        num_leapfrog_steps: leapfrog steps, each one call of the field; at least 1.
        generator: source of randomness, on the device of the position.
        inverse_mass: diagonal of M^{-1} > 0, a float or broadcastable to (1, *).
        error: of the energy, one of ``ACCEPTANCES``.

    Raises:
        ValueError: if ``state`` is not finite, or a setting lies outside its range.
    """
    _require_finite(state)
    position, inverse_mass = state.position, _inverse_mass_like(inverse_mass, state.position)
    noise = torch.empty_like(position).normal_(generator=generator)
    start = Phase(position, noise / inverse_mass.sqrt(), state.gradient)
    end = leapfrog(start, target.gradient, step_size, num_leapfrog_steps, inverse_mass)
    proposal = HMCState(end.position, target.log_density(end.position), end.gradient)

    h = torch.as_tensor(step_size, dtype=torch.float64, device=position.device)
    ends = (state.log_density, proposal.log_density)
    change = error(Proposal(start, end, *ends, h, inverse_mass))
    probability = torch.exp(-change).clamp(max=1.0)  # the min of the Metropolis rule
    probability = torch.where(change.isfinite(), probability, 0.0)
    is_accepted = torch.empty_like(probability).uniform_(generator=generator) < probability
    rows = (
        torch.where(expand_like(is_accepted, new).bool(), new, old)
        for new, old in zip(proposal, state, strict=True)
    )
    new_state = HMCState(*rows)
    return new_state, HMCInfo(probability, is_accepted, change)


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
    """
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
