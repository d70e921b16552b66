r"""A discrete flow whose inverse and density are exact, however few steps it takes.

A step of the implicit midpoint rule along dx / d tau = f(x) is

    m = x + (h / 2) f(m, t_mid),     y = 2 m - x,     det dy/dx = det(I + h/2 J) / det(I - h/2 J),

with J the Jacobian of f at m. The rule is its own adjoint: from y, the step with -h finds the same
m and gives x back, as long as the step is short enough for m to be the only solution; each step is
checked for that. Chains that are moved by such steps therefore have exact weights, without the
error of discretising a divergence. The steps approximate the probability-flow ODE to second order;
as a proposal they need no such thing.

Source: Hairer, Lubich, Wanner, Geometric Numerical Integration, sections II.1 and V.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.paths.divergence import jacobian
from ebm_app.paths.probability_flow import ClockField


class Moved(NamedTuple):
    """Points (B, *) after a map, and log |det| of it, (B,) float64."""

    x: Tensor
    log_det: Tensor


class ImplicitMidpoint:
    """Implicit midpoint steps between consecutive ``times``.

    Args:
        field: dx / d tau.
        times: N + 1 >= 2 times, in order, at the middle of which (in the field's clock) alpha > 0.

    Raises (its methods):
        UserError: where the fixed-point iteration for m does not settle, or the step back settles
            elsewhere, as happens where a step is too long for the field; take more steps.
    """

    max_iterations = 200

    def __init__(self, field: ClockField, times: Sequence[float]) -> None:
        self.field = field
        clock, path = field.clock, field.path
        tau = clock.reading(path, torch.tensor(times, dtype=torch.float64))
        self.steps = (tau[1:] - tau[:-1]).tolist()
        self.middles = clock.time(path, (tau[1:] + tau[:-1]) / 2).tolist()

    def __len__(self) -> int:
        return len(self.steps)

    def forward(self, x: Tensor) -> Moved:
        """From the first time to the last."""
        return self._move(x, range(len(self)), 1)

    def backward(self, x: Tensor) -> Moved:
        """The inverse of ``forward``."""
        return self._move(x, reversed(range(len(self))), -1)

    def _move(self, x: Tensor, indices: range, direction: int) -> Moved:
        log_det = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for k in indices:
            half = direction * self.steps[k] / 2
            middle = self._middle(x, half, self.middles[k])
            self._check_return(2 * middle - x, middle, half, self.middles[k])
            _, matrix = jacobian(lambda y, k=k: self.field(y, self.middles[k]), middle)
            matrix = half * matrix
            unit = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
            log_det += torch.linalg.slogdet(unit + matrix).logabsdet
            log_det -= torch.linalg.slogdet(unit - matrix).logabsdet
            x = 2 * middle - x
        return Moved(x, log_det)

    def _check_return(self, y: Tensor, middle: Tensor, half: float, t: float) -> None:
        """Raise a UserError unless the step back from ``y`` has the same midpoint."""
        gap = (self._middle(y, -half, t) - middle).abs().max().item()
        if gap > 1e3 * torch.finfo(y.dtype).eps * y.abs().max().clamp(min=1).item():
            raise UserError(
                f"the step at t = {t} leads back elsewhere, {gap:.1e} away: take more steps"
            )

    @torch.no_grad()
    def _middle(self, x: Tensor, half: float, t: float) -> Tensor:
        """The fixed point m = x + half * f(m, t), to a few units in the last place."""
        tolerance = 16 * torch.finfo(x.dtype).eps * x.abs().max().clamp(min=1).item()
        middle = x
        for _ in range(self.max_iterations):
            update = x + half * self.field(middle, t)
            change = (update - middle).abs().max().item()
            middle = update
            if change <= tolerance:
                return middle
        raise UserError(
            f"the implicit step at t = {t} has not settled after {self.max_iterations} iterations "
            f"(last change {change:.1e}): take more steps"
        )
