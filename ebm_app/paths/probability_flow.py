r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

It is integrated in the reading tau(t) of a schedule, such as the arc length of the path, in which
it is smooth at both ends. Together with it goes its log-determinant

    d/dt log |det dx_t/dx_0| = div u_t(x_t),     log p_t(x_t) = log p_0(x_0) - int_0^t div u ds.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Karras et al. 2022,
arXiv:2206.00364, for Heun's method.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.paths.divergence import with_divergence
from ebm_app.paths.schedules import ARC_LENGTH, Schedule
from ebm_app.utils.errors import NumericalError, UserError

Score = Callable[[Tensor, float], Tensor]
#: (which of the evenly spaced times of a step, state there) -> d state / d tau
Rate = Callable[[int, Tensor], Tensor]


def heun_step(rate: Rate, y: Tensor, h: float) -> Tensor:
    """The state after a step h of Heun's method, of second order."""
    first = rate(0, y)
    second = rate(1, y + h * first)
    return y + h / 2 * (first + second)


def rk4_step(rate: Rate, y: Tensor, h: float) -> Tensor:
    """The state after a step h of Kutta's 3/8 rule, of fourth order (Hairer, Norsett, Wanner,
    Solving Ordinary Differential Equations I, section II.1)."""
    first = rate(0, y)
    second = rate(1, y + h * first * (1 / 3))
    third = rate(2, y + h * (second - first * (1 / 3)))
    fourth = rate(3, y + h * (first - second + third))
    return y + (first + 3 * (second + third) + fourth) * h * 0.125


class Solver(NamedTuple):
    """``parts`` equal parts of a step, at whose ends the rate is evaluated ``cost`` times."""

    step: Callable[[Rate, Tensor, float], Tensor]
    parts: int
    cost: int


SOLVERS = {"heun": Solver(heun_step, 1, 2), "rk4": Solver(rk4_step, 3, 4)}


class FlowState(NamedTuple):
    """Points (B, *) of the flow after ``step`` steps; ``nfe`` evaluations of the score so far; the
    estimates (K, B) of the log-determinant of the way there, one for each probe."""

    x: Tensor
    step: int
    nfe: int
    log_det: Tensor


@dataclass(frozen=True)
class ProbabilityFlow:
    """The flow of a score (x, t) -> grad_x log p_t(x), whose steps are even in a schedule."""

    score: Score
    path: GaussianPath
    schedule: Schedule = ARC_LENGTH

    def rate(self, x: Tensor, t: float) -> Tensor:
        """dx / d tau at ``x`` (B, *) and time ``t``.

        Raises:
            UserError: on a path without a velocity, or where alpha is 0.
        """
        time = torch.tensor(t, dtype=torch.float64)
        if not self.path.alpha(time) > 0:
            raise UserError(
                f"the probability-flow ODE needs alpha > 0, which it is not at t = {t}: "
                "start later"
            )
        velocity = self.path.velocity(x, self.score(x, t), time)
        return velocity / self.schedule.rate(self.path, time).item()

    def solve(
        self,
        x: Tensor,
        start: float,
        end: float,
        solver: str = "rk4",
        num_steps: int = 20,
        probes: Tensor | None = None,
    ) -> Iterator[FlowState]:
        """The state after each step; it is kept in float64, the score gets the dtype of ``x``.

        Args:
            x: (B, *), at time ``start``. end: the last time, in either direction.
            solver: a key of ``SOLVERS``.
            probes: (K, B, *) for the estimates of the divergence; none are made without.

        Raises:
            UserError: for a schedule infinite at an end.
            NumericalError: where the flow is not finite.
        """
        step, parts, cost = SOLVERS[solver]
        times = self.schedule.times(self.path, start, end, num_steps * parts).tolist()
        ends = self.schedule.reading(self.path, torch.tensor([start, end], dtype=torch.float64))
        readings = torch.linspace(*ends.tolist(), num_steps + 1, dtype=torch.float64)
        probes = x.new_zeros(0, *x.shape) if probes is None else probes
        size = x[0].numel()
        # one row an example: its components, then its log-determinants
        state = torch.cat([x.flatten(1), x.new_zeros(len(x), len(probes))], 1).double()

        def point(state: Tensor) -> Tensor:
            return state[:, :size].reshape(x.shape).to(x.dtype)

        def rate_at(t: float, state: Tensor) -> Tensor:
            velocity, divergence = with_divergence(lambda y: self.rate(y, t), point(state), probes)
            if not velocity.isfinite().all():
                raise NumericalError(
                    f"the flow is not finite at t = {t}: the training of the model has diverged, "
                    "or the settings are out of range"
                )
            return torch.cat([velocity.flatten(1).double(), divergence.T], 1)

        for k, h in enumerate(readings.diff().tolist()):
            own = times[k * parts : (k + 1) * parts + 1]
            state = step(lambda part, y, own=own: rate_at(own[part], y), state, h)
            log_det = state[:, size:].T
            yield FlowState(point(state), k + 1, (k + 1) * cost, log_det)
