r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

It is integrated over tau(t) of a schedule, such as the arc length of the path, in which it is
smooth at both ends. The log-determinant is integrated along with it,

    d/dt log |det dx_t/dx_0| = div u_t(x_t),     log p_t(x_t) = log p_0(x_0) - int_0^t div u ds.

The divergence div f(x) = sum_i df_i/dx_i is exact, or Hutchinson's estimate z^T (df/dx) z for
random probes z with E[z z^T] = I. The probes of a solve are drawn once, because fresh probes at
every step would make the integrand a random function of time.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Karras et al. 2022,
arXiv:2206.00364, for Heun's method; Grathwohl et al. 2019, FFJORD, arXiv:1810.01367, section 3.1,
for the probes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths.base import Schedule
from ebm_app.paths.one_sided import OneSidedPath
from ebm_app.utils.errors import NumericalError
from ebm_app.utils.random import draws_by_point
from ebm_app.utils.tensors import leaves

Score = Callable[[Tensor, float], Tensor]
#: (index of an evenly spaced time within a step, state at that time) -> d state / d tau
Rate = Callable[[int, Tensor], Tensor]


def heun_step(rate: Rate, y: Tensor, h: float) -> Tensor:
    """Return the state after a step h of Heun's method (second order)."""
    first = rate(0, y)
    second = rate(1, y + h * first)
    return y + h / 2 * (first + second)


def rk4_step(rate: Rate, y: Tensor, h: float) -> Tensor:
    """Return the state after a step h of Kutta's 3/8 rule (fourth order; Hairer, Norsett, Wanner,
    Solving Ordinary Differential Equations I, section II.1)."""
    first = rate(0, y)
    second = rate(1, y + h * first * (1 / 3))
    third = rate(2, y + h * (second - first * (1 / 3)))
    fourth = rate(3, y + h * (first - second + third))
    return y + (first + 3 * (second + third) + fourth) * h * 0.125


#: name -> (step, number of equal intervals between the times of a step)
SOLVERS = {"heun": (heun_step, 1), "rk4": (rk4_step, 3)}


def with_divergence(
    field: Callable[[Tensor], Tensor], x: Tensor, probes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return f(x) (B, *) and an estimate z^T (df/dx) z of its divergence per probe, (K, B)
    float64, both without gradients.

    Each probe costs one backward pass. The field must treat the examples independently.

    Args:
        probes: z, (K, B, *); K = 0 evaluates the field only.
    """
    if not len(probes):
        with torch.no_grad():
            return field(x), torch.zeros(0, len(x), dtype=torch.float64, device=x.device)
    with leaves(x.detach()) as (point,):
        value = field(point)
        forms = [
            (torch.autograd.grad(value, point, z, retain_graph=True)[0] * z).flatten(1).sum(1)
            for z in probes.to(value.dtype)
        ]
    return value.detach(), torch.stack(forms).double()


def probes_for(num: int, like: Tensor, seed: int) -> Tensor:
    """Return ``num`` probes (num, B, *) of +1 and -1 for points ``like`` (B, *), see
    ``draws_by_point``; for 0 the D unit vectors (D, B, *), over which the estimates sum to the
    exact divergence."""
    if num:
        signs = partial(torch.randint, 2)
        return 2 * draws_by_point(signs, num, like, seed) - 1
    size = like[0].numel()
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    return unit.reshape(size, 1, *like.shape[1:]).expand(size, *like.shape)


class FlowState(NamedTuple):
    """Points (B, *) after ``step`` steps, the evaluations of the score so far, and an estimate
    (K, B) of the log-determinant per probe."""

    x: Tensor
    step: int
    nfe: int
    log_det: Tensor


def solve_flow(
    score: Score,
    path: OneSidedPath,
    schedule: Schedule,
    x: Tensor,
    ends: tuple[float, float],
    solver: str = "rk4",
    num_steps: int = 20,
    probes: Tensor | None = None,
) -> Iterator[FlowState]:
    """Follow the flow of a score (x, t) -> grad_x log p_t(x), with equal steps in a schedule, and
    yield the state after each step. The state is kept in float64; the score is evaluated in the
    dtype of ``x``.

    Args:
        x: points at the first time, (B, *).
        ends: first and last time, in either direction, at which alpha exceeds 0.
        solver: a key of ``SOLVERS``.
        probes: probes of the divergence (K, B, *), see ``with_divergence``; None for no estimate.

    Raises:
        NumericalError: where the flow is not finite.
    """
    step, intervals = SOLVERS[solver]
    times = schedule.times(path, *ends, num_steps * intervals).tolist()
    first, last = schedule.tau(path, torch.tensor(ends, dtype=torch.float64))
    h = ((last - first) / num_steps).item()
    probes = x.new_zeros(0, *x.shape) if probes is None else probes
    nfe, size = 0, x[0].numel()
    # Each row holds the values of a point, then its log-determinants.
    state = torch.cat([x.flatten(1), x.new_zeros(len(x), len(probes))], 1).double()

    def point(state: Tensor) -> Tensor:
        return state[:, :size].reshape(x.shape).to(x.dtype)

    def rate_at(t: float, state: Tensor) -> Tensor:
        nonlocal nfe
        nfe += 1
        time = torch.tensor(t, dtype=torch.float64)
        slope = schedule.rate(path, time).item()

        def field(y: Tensor) -> Tensor:
            return path.velocity(y, score(y, t), time) / slope

        velocity, divergence = with_divergence(field, point(state), probes)
        return torch.cat([velocity.flatten(1).double(), divergence.T], 1)

    for k in range(num_steps):
        own = times[k * intervals : (k + 1) * intervals + 1]
        state = step(lambda index, y, own=own: rate_at(own[index], y), state, h)
        yield FlowState(point(state), k + 1, nfe, state[:, size:].T)
    if not state.isfinite().all():  # only once, because each check synchronises with the GPU
        raise NumericalError(
            f"The probability flow from t = {ends[0]} to {ends[1]} is not finite. Check that the "
            "training of the model converged and that the settings are in range."
        )
