"""Ordinary differential equations dy/dt = f(t, y), solved by torchdiffeq.

Sources: Chen et al. 2018, arXiv:1806.07366, for the library; Hairer, Norsett, Wanner, Solving
Ordinary Differential Equations I, section II.1, for the methods.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebm_app.io.errors import NumericalError

State = tuple[Tensor, ...]

#: name -> torchdiffeq's name. Equal steps: Heun's method, and Kutta's 3/8 rule of fourth order.
#: Steps by a tolerance: Dormand-Prince 5(4), by torchdiffeq and by SciPy.
METHODS = {"heun": "heun2", "rk4": "rk4", "dopri5": "dopri5", "rk45": "scipy_solver"}
ADAPTIVE = ("dopri5", "rk45")
#: evaluations after which a solve is given up
MAX_EVALUATIONS = 50_000


class Solution(NamedTuple):
    """The state at ``time`` and the evaluations of the rate so far."""

    time: float
    state: State
    nfe: int


@cache
def scipy_rk45() -> type:
    """SciPy's RK45, which has no ``min_step`` and fails as torchdiffeq's own solvers do."""
    from scipy.integrate import RK45  # half a second to import, only for this

    class ScipyRK45(RK45):
        def __init__(self, *args: Any, min_step: float, **settings: Any) -> None:
            super().__init__(*args, **settings)

        def step(self) -> str | None:
            message = super().step()
            if self.status == "failed":
                raise AssertionError(message)
            return message

    return ScipyRK45


def solve(
    rate: Callable[[Tensor, State], State],
    state: State,
    start: float,
    end: float,
    solver: str,
    num_steps: int = 1,
    rtol: float = 1e-6,
    atol: float = 1e-6,
) -> Iterator[Solution]:
    """The solution after each of ``num_steps`` equal steps from ``start`` to ``end``, in either
    direction; an adaptive solver takes its own steps and yields the end alone.

    The rate is never evaluated outside [start, end].

    Args:
        rate: (time () float64, state) -> d state / d time.
        state: float64 tensors on one device.
        solver: a key of METHODS.
        rtol, atol: tolerances of an adaptive solver.

    Raises:
        NumericalError: where an adaptive solver cannot reach its tolerance, or after
            ``MAX_EVALUATIONS`` evaluations.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> *_, last = solve(lambda t, state: state, (one,), 0.0, 1.0, "rk4", num_steps=20)
    >>> round(last.state[0].item(), 5), last.nfe
    (2.71828, 80)
    """
    from torchdiffeq import odeint  # imports SciPy's solvers, which takes half a second

    nfe, low, high = 0, min(start, end), max(start, end)
    num_steps = 1 if solver in ADAPTIVE else num_steps
    grid = torch.linspace(start, end, num_steps + 1, dtype=torch.float64, device=state[0].device)
    options = {"step_t": grid[1:]} if solver == "dopri5" else None
    if solver == "rk45":
        options = {"solver": scipy_rk45()}

    def counted(time: Tensor, state: State) -> State:
        nonlocal nfe
        nfe += 1
        if nfe > MAX_EVALUATIONS:
            raise NumericalError(
                f"the solver has not ended after {MAX_EVALUATIONS} evaluations, at {time.item()}: "
                "loosen the tolerance or use fixed nodes"
            )
        return rate(time.clamp(low, high), state)

    for step in range(num_steps):
        ends = grid[step : step + 2]
        try:
            states = odeint(
                counted,
                state,
                ends,
                rtol=rtol,
                atol=atol,
                method=METHODS[solver],
                options=options,
            )
        except AssertionError as error:  # the step size underflows
            raise NumericalError(
                f"the solver could not reach rtol {rtol}, atol {atol} from {start} to {end} "
                f"({error}): loosen the tolerance or use fixed nodes"
            ) from error
        state = tuple(part[-1] for part in states)
        yield Solution(ends[1].item(), state, nfe)
