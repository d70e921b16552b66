r"""The probability-flow ODE dx/dt = u_t(x): started from p_0, its solution has the marginals p_t.

It is integrated over tau(t) of a schedule, such as the arc length of the path, in which it is
smooth at both ends. The log-determinant is integrated along with it,

    d/dt log |det dx_t/dx_0| = div u_t(x_t),     log p_t(x_t) = log p_0(x_0) - int_0^t div u ds.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Karras et al. 2022,
arXiv:2206.00364, for Heun's method.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths.divergence import with_divergence
from ebm_app.paths.one_sided import OneSidedPath
from ebm_app.paths.schedules import ARC_LENGTH, Schedule
from ebm_app.utils.errors import NumericalError, UserError

Score = Callable[[Tensor, float], Tensor]
#: (index among the evenly spaced times of a step, state there) -> d state / d tau
Rate = Callable[[int, Tensor], Tensor]


def heun_step(rate: Rate, y: Tensor, h: float) -> Tensor:
    """Return the state after a step h of Heun's method, of second order."""
    first = rate(0, y)
    second = rate(1, y + h * first)
    return y + h / 2 * (first + second)


def rk4_step(rate: Rate, y: Tensor, h: float) -> Tensor:
    """Return the state after a step h of Kutta's 3/8 rule, of fourth order (Hairer, Norsett,
    Wanner, Solving Ordinary Differential Equations I, section II.1)."""
    first = rate(0, y)
    second = rate(1, y + h * first * (1 / 3))
    third = rate(2, y + h * (second - first * (1 / 3)))
    fourth = rate(3, y + h * (first - second + third))
    return y + (first + 3 * (second + third) + fourth) * h * 0.125


#: name -> (step, number of equal intervals between the times of a step)
SOLVERS = {"heun": (heun_step, 1), "rk4": (rk4_step, 3)}


class FlowState(NamedTuple):
    """Points (B, *) after ``step`` steps, the evaluations of the score so far, and an estimate
    (K, B) of the log-determinant per probe."""

    x: Tensor
    step: int
    nfe: int
    log_det: Tensor


@dataclass(frozen=True)
class ProbabilityFlow:
    """The flow of a score (x, t) -> grad_x log p_t(x), with equal steps in a schedule."""

    score: Score
    path: OneSidedPath
    schedule: Schedule = ARC_LENGTH

    def rate(self, x: Tensor, t: float) -> Tensor:
        """Return dx / d tau at ``x`` (B, *) and time ``t``.

        Raises:
            UserError: where alpha_t is 0.
        """
        time = torch.tensor(t, dtype=torch.float64)
        if not self.path.alpha(time) > 0:
            raise UserError(
                f"The probability-flow ODE needs alpha > 0, which does not hold at t = {t}. Start "
                "later."
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
        """Yield the state after each step. The state is kept in float64; the score is evaluated in
        the dtype of ``x``.

        Args:
            x: points at time ``start``, (B, *).
            start, end: first and last time, in either direction.
            solver: a key of ``SOLVERS``.
            probes: probes of the divergence (K, B, *), see ``with_divergence``; None for no
                estimate.

        Raises:
            UserError: for a schedule that is infinite at an end.
            NumericalError: where the flow is not finite.
        """
        step, intervals = SOLVERS[solver]
        times = self.schedule.times(self.path, start, end, num_steps * intervals).tolist()
        ends = self.schedule.tau(self.path, torch.tensor([start, end], dtype=torch.float64))
        h = ((ends[1] - ends[0]) / num_steps).item()
        probes = x.new_zeros(0, *x.shape) if probes is None else probes
        nfe, size = 0, x[0].numel()
        # Each row holds the values of a point, then its log-determinants.
        state = torch.cat([x.flatten(1), x.new_zeros(len(x), len(probes))], 1).double()

        def point(state: Tensor) -> Tensor:
            return state[:, :size].reshape(x.shape).to(x.dtype)

        def rate_at(t: float, state: Tensor) -> Tensor:
            nonlocal nfe
            nfe += 1
            velocity, divergence = with_divergence(lambda y: self.rate(y, t), point(state), probes)
            return torch.cat([velocity.flatten(1).double(), divergence.T], 1)

        for k in range(num_steps):
            own = times[k * intervals : (k + 1) * intervals + 1]
            state = step(lambda index, y, own=own: rate_at(own[index], y), state, h)
            yield FlowState(point(state), k + 1, nfe, state[:, size:].T)
        if not state.isfinite().all():  # checked once, because a GPU would wait at every check
            raise NumericalError(
                f"The probability flow from t = {start} to {end} is not finite. Check that the "
                "training of the model converged and that the settings are in range."
            )
