r"""Hamiltonian Monte Carlo on B independent chains, run side by side.

A density exp(log_density(x)) is extended by a momentum v ~ N(0, I). The joint density is exp(-H),
with the energy in nats

    H(x, v) = -log_density(x) + |v|^2 / 2.

A transition draws v, follows the dynamics by leapfrog steps of size h and accepts the end point
with probability min(1, exp(H_start - H_end)).

The field f that drives the leapfrog need not be the gradient of log_density. The kicks
v + h f(x) / 2 and the drifts x + h v are shears, so each has Jacobian determinant 1, and flipping
the momentum runs the trajectory backwards, for any f that depends on the position of its own chain
alone. The accept step, which reads log_density only, therefore leaves exp(log_density) invariant
whatever f is; a field far from the gradient costs acceptance, not validity.

Where only a score is known, the accept step may read the work that f does along the trajectory,
sum (f_k + f_{k+1}) / 2 . (x_{k+1} - x_k), for the change of log_density. The energy error then
telescopes to the fields at the ends,

    H_end - H_start = h^2 / 8 (|f_end|^2 - |f_start|^2),

and the transition is invariant up to the second-order error of that rule.

References: Duane et al. 1987, Phys. Lett. B 195; Neal 2011, arXiv:1206.1901, sections 2 and 3;
Sjoberg et al. 2023, arXiv:2307.14012, for accept steps from a score alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.utils.errors import NumericalError
from ebm_app.utils.tensors import expand_like, sum_except_batch

Field = Callable[[Tensor], Tensor]
#: what decides on a proposal, by the name of a setting: the work of the field along the
#: trajectory, the log density, or nothing
ACCEPTANCES = ("work", "energy", "none")


class Target(NamedTuple):
    """What a chain needs to know of a density; both treat the B chains independently.

    Attributes:
        log_density: (B, *) -> (B,), in nats, up to a constant. It alone fixes what is sampled.
        gradient: (B, *) -> (B, *), the leapfrog's field: the gradient of ``log_density``, in nats
            per unit of x, or any other field, such as a learned Stein score (see the module).
    """

    log_density: Field
    gradient: Field


class HMCState(NamedTuple):
    """The chains: position (B, *), with its log density (B,) in nats and field (B, *) cached."""

    position: Tensor
    log_density: Tensor
    gradient: Tensor


@torch.no_grad()
def init(position: Tensor, target: Target) -> HMCState:
    """Start chains at ``position`` (B, *); costs one call of the field.

    Raises:
        NumericalError: if the position, its log density or its field is not finite.
    """
    position = position.detach()
    state = HMCState(position, target.log_density(position), target.gradient(position))
    for name, value in state._asdict().items():
        bad = ~value.isfinite().reshape(len(position), -1).all(1)
        if bad.any():
            raise NumericalError(
                f"the {name} of the current state is not finite in {int(bad.sum())} chains: the "
                "training of the model has diverged, or the steps are too large"
            )
    return state


def leapfrog(
    position: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    field: Field,
    step_size: Tensor,
    num_leapfrog_steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Velocity-form leapfrog: v += h f(x) / 2; x += h v; v += h f(x) / 2, repeated.

    Energy error O(h^2) if f is the gradient. Neal 2011, arXiv:1206.1901, section 2.3.

    Args:
        position, momentum, gradient: x, v and f(x), (B, *) each; returned for the end.
        field: f, (B, *) -> (B, *).
        step_size: h > 0, () or (B,).
    """
    h = expand_like(step_size, position)
    for _ in range(num_leapfrog_steps):
        momentum = momentum + 0.5 * h * gradient
        position = position + h * momentum
        gradient = field(position)
        momentum = momentum + 0.5 * h * gradient
    return position, momentum, gradient


@torch.no_grad()
def step(
    state: HMCState,
    target: Target,
    step_size: Tensor,
    num_leapfrog_steps: int,
    generator: torch.Generator,
    acceptance: str = "energy",
) -> tuple[HMCState, Tensor]:
    """One transition with a fresh momentum: the new state, and min(1, exp(H_start - H_end)) (B,).

    By the energy it leaves exp(target.log_density) invariant. A proposal whose energy is not
    finite is refused (Neal 2011, section 3.2).

    Args:
        state: chains at this target, from ``init`` or an earlier ``step``.
        step_size: h > 0, () or (B,) float64.
        num_leapfrog_steps: leapfrog steps, each one call of the field; at least 1.
        generator: source of randomness, on the device of the position.
        acceptance: one of ``ACCEPTANCES``; all but "energy" need no log density.
    """
    momentum = torch.empty_like(state.position).normal_(generator=generator)
    position, end_momentum, gradient = leapfrog(
        state.position, momentum, state.gradient, target.gradient, step_size, num_leapfrog_steps
    )
    proposal = HMCState(position, target.log_density(position), gradient)
    change = energy_error(acceptance, state, proposal, (momentum, end_momentum), step_size)
    probability = torch.exp(-change).clamp(max=1.0)  # the min of the Metropolis rule
    probability = torch.where(change.isfinite(), probability, 0.0)
    is_accepted = torch.empty_like(probability).uniform_(generator=generator) < probability
    rows = (
        torch.where(expand_like(is_accepted, new).bool(), new, old)
        for new, old in zip(proposal, state, strict=True)
    )
    return HMCState(*rows), probability


def energy_error(
    acceptance: str,
    start: HMCState,
    end: HMCState,
    momenta: tuple[Tensor, Tensor],
    step_size: Tensor,
) -> Tensor:
    """H_end - H_start of a trajectory in nats, as ``acceptance`` finds it: (B,)."""
    if acceptance == "energy":
        before, after = (0.5 * sum_except_batch(momentum.square()) for momentum in momenta)
        return (after - end.log_density) - (before - start.log_density)
    if acceptance == "work":
        before, after = (
            sum_except_batch(state.gradient.double().square()) for state in (start, end)
        )
        return step_size.to(before.device).square() / 8 * (after - before)
    return torch.zeros_like(start.log_density, dtype=torch.float64)


def adapt(scale: Tensor, probability: Tensor, target: float, growth: float = 1.1) -> Tensor:
    """The next scale s growth^((a - target) / target) of the step sizes, a the acceptance seen.

    It settles where the mean of a is the target. A scale () reads the mean over the chains; one of
    shape (B,) reads each chain's own value, whose mean is then taken over time. A chain under
    adaptation does not leave its density invariant: freeze the step before reporting. For one
    distribution in high dimension a target of 0.65 is optimal (Beskos et al. 2013,
    arXiv:1001.4460).

    Args:
        scale: () or (B,). probability: (B,), of the transition just made.
    """
    seen = probability if scale.ndim else probability.mean()
    return scale * growth ** ((seen.to(scale) - target) / target)
