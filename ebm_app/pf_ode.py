r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

Steps are evenly spaced in the Fisher-Rao clock of the path, by Heun's method, which is of second
order. Source: Song et al. 2021, arXiv:2011.13456; Karras et al. 2022, arXiv:2206.00364 for Heun.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.paths import GaussianPath, OneSidedPath

Score = Callable[[Tensor, float], Tensor]


class FlowState(NamedTuple):
    """Points (B, *) of the flow at time ``t``, after ``step`` of ``num_steps`` steps; ``nfe``
    evaluations of the score so far."""

    x: Tensor
    t: float
    step: int
    num_steps: int
    nfe: int


def clock_grid(path: GaussianPath, start: float, end: float, num_points: int) -> Tensor:
    """``num_points`` times from ``start`` to ``end``, evenly spaced in the clock: float64."""
    ends = torch.tensor([start, end], dtype=torch.float64)
    tau = path.clock(ends)
    times = path.clock_inverse(torch.linspace(tau[0].item(), tau[1].item(), num_points).double())
    times[0], times[-1] = ends
    return times


def flow(
    score: Score, path: GaussianPath, x: Tensor, start: float, end: float, num_steps: int
) -> Iterator[FlowState]:
    """Heun steps of the flow from ``x`` (B, *) at ``start`` to ``end``, yielding every state.

    The derivative is taken with respect to the clock, in which the flow is smooth at both ends.

    Args:
        score: (x, t) -> grad_x log p_t(x).
        start: a time with alpha_t > 0.

    Raises:
        UserError: on a path that is not one-sided, for fewer than one step, or where alpha is 0.
        ValueError: where a state is not finite.
    """
    if not isinstance(path, OneSidedPath):
        raise UserError(
            f"the probability-flow ODE needs a one-sided path, not {type(path).__name__}"
        )
    if num_steps < 1:
        raise UserError(f"the probability-flow ODE needs at least 1 step, not {num_steps}")
    times = clock_grid(path, start, end, num_steps + 1)
    if not (path.alpha(times) > 0).all():
        raise UserError(
            f"the probability-flow ODE needs alpha > 0 from t = {start} to {end}: start later"
        )
    rates = path.time_score_variance(times).rsqrt()
    tau = path.clock(times)

    def slope(point: Tensor, k: int) -> Tensor:
        velocity = path.velocity(point, score(point, times[k].item()), times[k])
        return velocity * rates[k].item()

    for k in range(num_steps):
        h = (tau[k + 1] - tau[k]).item()
        first = slope(x, k)
        second = slope(x + h * first, k + 1)
        x = x + h * (first + second) / 2
        if not x.isfinite().all():
            raise ValueError(f"the flow is not finite after step {k + 1}: check the score")
        yield FlowState(x, times[k + 1].item(), k + 1, num_steps, 2 * (k + 1))
