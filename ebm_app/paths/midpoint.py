r"""A step along a probability flow whose inverse and determinant are exact, however long it is.

A step of the implicit midpoint rule along dx / d tau = f(x) is

    m = x + (h / 2) f(m, t_mid),     y = 2 m - x,     det dy/dx = det(I + h/2 J) / det(I - h/2 J),

with J the Jacobian of f at m. The rule is its own adjoint: from y, the step with -h finds the same
m and gives x back, as long as the step is short enough for m to be the only solution; each step is
checked for that. Chains that are moved by such steps therefore have exact weights, without the
error of discretising a divergence.

Source: Hairer, Lubich, Wanner, Geometric Numerical Integration, sections II.1 and V.1.
"""

import torch
from torch import Tensor

from ebm_app.paths.divergence import jacobian
from ebm_app.paths.probability_flow import ProbabilityFlow
from ebm_app.utils.errors import UserError

MAX_ITERATIONS = 200


class ImplicitMidpoint:
    """The step of a flow from time ``start`` to ``end``, between which alpha > 0.

    Raises (its methods):
        UserError: where the fixed-point iteration for m does not settle, or the step back settles
            elsewhere, as happens where a step is too long for the field; take more steps.
    """

    def __init__(self, flow: ProbabilityFlow, start: float, end: float) -> None:
        ends = flow.schedule.reading(flow.path, torch.tensor([start, end], dtype=torch.float64))
        self.flow, self.half = flow, (ends[1] - ends[0]).item() / 2
        self.t = flow.schedule.time(flow.path, ends.mean()).item()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y (B, *) of x (B, *), and log |det dy/dx| (B,) float64."""
        return self._move(x, self.half)

    def backward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """x of y, and log |det dx/dy|."""
        return self._move(y, -self.half)

    def _move(self, x: Tensor, half: float) -> tuple[Tensor, Tensor]:
        middle = self._middle(x, half)
        moved = 2 * middle - x
        gap = (self._middle(moved, -half) - middle).abs().max().item()
        if gap > 1e3 * torch.finfo(x.dtype).eps * moved.abs().max().clamp(min=1).item():
            raise UserError(
                f"the step at t = {self.t} leads back elsewhere, {gap:.1e} away: take more steps"
            )
        matrix = half * jacobian(lambda y: self.flow.rate(y, self.t), middle)
        unit = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
        up, down = (torch.linalg.slogdet(unit + sign * matrix).logabsdet for sign in (1, -1))
        return moved, up - down

    @torch.no_grad()
    def _middle(self, x: Tensor, half: float) -> Tensor:
        """The fixed point m = x + half * f(m), to a few units in the last place."""
        tolerance = 16 * torch.finfo(x.dtype).eps * x.abs().max().clamp(min=1).item()
        middle = x
        for _ in range(MAX_ITERATIONS):
            update = x + half * self.flow.rate(middle, self.t)
            change = (update - middle).abs().max().item()
            middle = update
            if change <= tolerance:
                return middle
        raise UserError(
            f"the implicit step at t = {self.t} has not settled after {MAX_ITERATIONS} iterations "
            f"(last change {change:.1e}): take more steps"
        )
