r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

It is integrated in the Fisher-Rao clock of the path, in which it is smooth at both ends, together
with its log-determinant

    d/dt log |det dx_t/dx_0| = div u_t(x_t),     log p_t(x_t) = log p_0(x_0) - int_0^t div u ds.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Karras et al. 2022,
arXiv:2206.00364, for Heun's method.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torchdiffeq import odeint

from ebm_app.errors import UserError
from ebm_app.paths import GaussianPath
from ebm_app.probability_flow.divergence import Divergence, no_divergence

Score = Callable[[Tensor, float], Tensor]


class ODEState(NamedTuple):
    """Points (B, *) of the flow at time ``t`` after ``step`` of ``num_steps`` steps; ``nfe``
    evaluations of the score so far; K estimates (K, B) of the log-determinant of the way there."""

    x: Tensor
    t: float
    step: int
    num_steps: int
    nfe: int
    log_det: Tensor


def clock_grid(path: GaussianPath, start: float, end: float, num_points: int) -> Tensor:
    """``num_points`` times from ``start`` to ``end``, evenly spaced in the clock: float64."""
    ends = torch.tensor([start, end], dtype=torch.float64)
    tau = path.clock(ends)
    even = torch.linspace(tau[0].item(), tau[1].item(), num_points, dtype=torch.float64)
    times = path.clock_inverse(even)
    times[0], times[-1] = ends
    return times


@dataclass(frozen=True)
class ClockField:
    """dx / d tau of the flow of a score (x, t) -> grad_x log p_t(x), tau the path's clock.

    Raises:
        UserError: on a path without a velocity, or where alpha is 0.
    """

    score: Score
    path: GaussianPath

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """At ``x`` (B, *) and time ``t`` with alpha_t > 0."""
        time = torch.tensor(t, dtype=torch.float64)
        if not self.path.alpha(time) > 0:
            raise UserError(
                f"the probability-flow ODE needs alpha > 0, which it is not at t = {t}: "
                "start later"
            )
        velocity = self.path.velocity(x, self.score(x, t), time)
        return velocity * self.path.time_score_variance(time).rsqrt().item()


class Solver(ABC):
    """A way to integrate the flow; a subclass is a frozen dataclass of its settings."""

    @abstractmethod
    def flow(
        self,
        field: ClockField,
        x: Tensor,
        start: float,
        end: float,
        divergence: Divergence = no_divergence,
    ) -> Iterator[ODEState]:
        """States of the flow from ``x`` (B, *) at ``start`` to ``end``, in either direction.

        Raises:
            ValueError: where a state is not finite.
        """


class Tableau(NamedTuple):
    """An explicit Runge-Kutta method: its coefficients a and b, and its nodes in half steps."""

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    half_steps: tuple[int, ...]


HEUN = Tableau(((), (1.0,)), (1 / 2, 1 / 2), (0, 2))
RK4 = Tableau(
    ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6), (0, 1, 1, 2)
)


@dataclass(frozen=True)
class FixedSteps(Solver):
    """Steps of an explicit method, evenly spaced in the clock.

    Raises:
        UserError: for fewer than one step.
    """

    tableau: Tableau
    num_steps: int

    def __post_init__(self) -> None:
        """Refuse counts that make no way."""
        if self.num_steps < 1:
            raise UserError(
                f"the probability-flow ODE needs at least 1 step, not {self.num_steps}"
            )

    def flow(
        self,
        field: ClockField,
        x: Tensor,
        start: float,
        end: float,
        divergence: Divergence = no_divergence,
    ) -> Iterator[ODEState]:
        times = clock_grid(field.path, start, end, 2 * self.num_steps + 1).tolist()
        tau = field.path.clock(torch.tensor([start, end], dtype=torch.float64))
        h = ((tau[1] - tau[0]) / self.num_steps).item()
        log_det = torch.zeros((), dtype=torch.float64, device=x.device)
        for k in range(self.num_steps):
            slopes, rates = [], []
            for row, node in zip(self.tableau.a, self.tableau.half_steps, strict=True):
                point = x + h * sum(a * slope for a, slope in zip(row, slopes, strict=True))
                time = times[2 * k + node]
                slope, rate = divergence(lambda y, time=time: field(y, time), point)
                slopes.append(slope)
                rates.append(rate)
            x = x + h * sum(b * slope for b, slope in zip(self.tableau.b, slopes, strict=True))
            log_det = log_det + h * sum(
                b * rate for b, rate in zip(self.tableau.b, rates, strict=True)
            )
            if not x.isfinite().all():
                raise ValueError(f"the flow is not finite after step {k + 1}: check the score")
            nfe = len(slopes) * (k + 1)
            yield ODEState(x, times[2 * k + 2], k + 1, self.num_steps, nfe, log_det)


@dataclass(frozen=True)
class AdaptiveSteps(Solver):
    """Dormand-Prince 5(4) by torchdiffeq, in float64, one step size for the whole batch; a single
    state, the last. ``tolerance`` is both rtol and atol."""

    tolerance: float = 1e-5

    def flow(
        self,
        field: ClockField,
        x: Tensor,
        start: float,
        end: float,
        divergence: Divergence = no_divergence,
    ) -> Iterator[ODEState]:
        ends = torch.tensor([start, end], dtype=torch.float64)
        # the clock has no inverse to the last digit, and no velocity exists beyond the ends
        low, high = min(start, end), max(start, end)
        nfe = 0

        def rates(tau: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            nonlocal nfe
            nfe += 1
            t = min(max(field.path.clock_inverse(tau.cpu()).item(), low), high)
            slope, rate = divergence(lambda y: field(y, t), state[0].to(x.dtype))
            return slope.double(), rate

        _, rows = divergence(lambda y: field(y, start), x)
        tau = field.path.clock(ends).to(x.device)
        solution, log_det = odeint(
            rates,
            (x.double(), torch.zeros_like(rows)),
            tau,
            rtol=self.tolerance,
            atol=self.tolerance,
            method="dopri5",
            options={"step_t": tau[1:]},
        )
        end_point = solution[-1].to(x.dtype)
        if not end_point.isfinite().all():
            raise ValueError("the flow is not finite at its end: check the score")
        yield ODEState(end_point, end, 1, 1, nfe + 1, log_det[-1])


#: name -> solver of (number of steps, tolerance), each of which uses what applies to it
SOLVERS: dict[str, Callable[[int, float], Solver]] = {
    "heun": lambda num_steps, tolerance: FixedSteps(HEUN, num_steps),
    "rk4": lambda num_steps, tolerance: FixedSteps(RK4, num_steps),
    "dopri5": lambda num_steps, tolerance: AdaptiveSteps(tolerance),
}
