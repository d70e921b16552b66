r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

It is integrated in a clock of the path: the arc length, in which it is smooth at both ends, or
another. Together with it goes its log-determinant

    d/dt log |det dx_t/dx_0| = div u_t(x_t),     log p_t(x_t) = log p_0(x_0) - int_0^t div u ds.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Karras et al. 2022,
arXiv:2206.00364, for Heun's method.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.io.errors import NumericalError, UserError
from ebm_app.io.registry import choose
from ebm_app.numerics.ode import State, solve
from ebm_app.paths import GaussianPath
from ebm_app.paths.clocks import ARC_LENGTH, Clock
from ebm_app.paths.divergence import Divergence, NoDivergence

Score = Callable[[Tensor, float], Tensor]
#: equal parts of a step at whose ends a solver evaluates the flow
PARTS = {"heun": 1, "rk4": 3}
#: solvers of the probability flow, among those of ``ebm_app.numerics.ode.METHODS``
SOLVERS = (*PARTS, "dopri5")
NO_DIVERGENCE = NoDivergence()


class ODEState(NamedTuple):
    """Points (B, *) of the flow at time ``t`` after ``step`` of ``num_steps`` steps; ``nfe``
    evaluations of the rate so far; K sums (K, B) over the way there, such as estimates of its
    log-determinant."""

    x: Tensor
    t: float
    step: int
    num_steps: int
    nfe: int
    sums: Tensor


@dataclass(frozen=True)
class ClockField:
    """dx / d tau of the flow of a score (x, t) -> grad_x log p_t(x), tau the reading of a clock.

    Raises:
        UserError: on a path without a velocity, or where alpha is 0.
    """

    score: Score
    path: GaussianPath
    clock: Clock = ARC_LENGTH

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """At ``x`` (B, *) and time ``t`` with alpha_t > 0."""
        time = torch.tensor(t, dtype=torch.float64)
        if not self.path.alpha(time) > 0:
            raise UserError(
                f"the probability-flow ODE needs alpha > 0, which it is not at t = {t}: "
                "start later"
            )
        velocity = self.path.velocity(x, self.score(x, t), time)
        return velocity / self.clock.rate(self.path, time).item()


def solve_pf_ode(
    field: ClockField,
    x: Tensor,
    start: float,
    end: float,
    solver: str = "rk4",
    num_steps: int = 20,
    tolerance: float = 1e-5,
    divergence: Divergence = NO_DIVERGENCE,
) -> Iterator[ODEState]:
    """States of the probability flow in the clock of its field, with the estimates of its
    log-determinant, which are summed up in float64.

    Args:
        x: (B, *), at time ``start``. end: the last time, in either direction.
        solver: a key of ``SOLVERS``.
        num_steps: steps of "heun" and "rk4", evenly spaced in the clock; a state after each.
        tolerance: rtol and atol of "dopri5", whose one step size serves the whole batch; one
            state, the last.

    Raises:
        UserError: for an unknown solver, or a clock infinite at an end.
        NumericalError: where the flow is not finite, and as ``ebm_app.numerics.ode.solve``.
    """
    choose("solver", solver, SOLVERS)
    path, clock = field.path, field.clock
    first, last = clock.ends(path, start, end)
    num_parts = num_steps * PARTS.get(solver, 1)
    times = clock.grid(path, start, end, num_parts + 1).tolist()

    def time_at(tau: float) -> float:
        """The time at a reading of the clock."""
        place = (tau - first) / (last - first) * num_parts
        if solver in PARTS or tau in (first, last):
            return times[round(place)]
        # the clock's inverse has a rounding error, and the rate is known between the ends alone
        time = clock.time(path, torch.tensor(tau, dtype=torch.float64)).item()
        return min(max(time, min(start, end)), max(start, end))

    def state_rate(tau: Tensor, state: State) -> State:
        t = time_at(tau.item())
        slope, rows = divergence(lambda y: field(y, t), state[0].to(x.dtype))
        if not slope.isfinite().all():
            raise NumericalError(
                f"the flow is not finite at t = {t}: the training of the model has diverged, or "
                "the settings are out of range"
            )
        return slope.double(), rows

    rows = torch.zeros(divergence.num_estimates, len(x), dtype=torch.float64, device=x.device)
    state, tolerances = (x.double(), rows), {"rtol": tolerance, "atol": tolerance}
    steps = solve(state_rate, state, first, last, solver, num_steps, **tolerances)
    num_steps = num_steps if solver in PARTS else 1
    for step, (tau, (point, sums), nfe) in enumerate(steps, 1):
        yield ODEState(point.to(x.dtype), time_at(tau), step, num_steps, nfe, sums)
