r"""The probability-flow ODE dx/dt = u_t(x), whose solution started from p_0 has the marginals p_t.

With the log-determinant of the map from x_0 to x_t,

    d/dt log |det dx_t/dx_0| = div u_t,        log p_t(x_t) = log p_0(x_0) - int_0^t div u dt.

The divergence div f(x) = sum_i df_i/dx_i is exact, or Hutchinson's estimate z^T (df/dx) z for
random probes z with E[z z^T] = I. The probes of a solve are drawn once, because fresh probes at
every step would make the integrand a random function of time.

The equations are solved in a variable s in [0, 1], a smooth function of time in which their
solution changes slowly (``ProbabilityFlow.times``). ``ebm_app.paths.flow_solvers`` has the
solvers.

Sources: Song et al. 2021, arXiv:2011.13456, section 4.3 and appendix D.2; Grathwohl et al. 2019,
FFJORD, arXiv:1810.01367, section 3.1, for the probes.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.paths.base import Schedule, invert
from ebm_app.paths.one_sided import OneSidedPath
from ebm_app.utils.random import draws_by_point
from ebm_app.utils.tensors import leaves

Score = Callable[[Tensor, float], Tensor]
#: Concentration of s at both ends, in [0, 1); for 0, tau is linear in s
CONCENTRATION = 0.7


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


def probes_for(num: int, like: Tensor, seed: int, key: Tensor | None = None) -> Tensor:
    """Return ``num`` probes (num, B, *) of +1 and -1 for points ``like`` (B, *), see
    ``draws_by_point``; for 0 the D unit vectors (D, B, *), over which the estimates sum to the
    exact divergence."""
    if num:
        signs = partial(torch.randint, 2)
        return 2 * draws_by_point(signs, num, like, seed, key) - 1
    size = like[0].numel()
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    return unit.reshape(size, 1, *like.shape[1:]).expand(size, *like.shape)


class Times(NamedTuple):
    """Times t(s), and the derivatives of t, alpha and sigma = sqrt(v) by s, each a float64 tensor
    with the shape of s."""

    t: Tensor
    t_ds: Tensor
    alpha_ds: Tensor
    sigma_ds: Tensor


class ProbabilityFlow:
    """Initial value problem of the probability flow of a model.

    Args:
        score: (x, t) -> grad_x log p_t(x), evaluated in the dtype of ``x``.
        schedule: function of time that defines s, see ``times``.
        x: points at the first time, (B, *).
        ends: first and last time, in either direction, at which alpha exceeds 0.
        probes: probes of the divergence (K, B, *), see ``with_divergence``; None for K = 0.
    """

    def __init__(
        self,
        score: Score,
        path: OneSidedPath,
        schedule: Schedule,
        x: Tensor,
        ends: tuple[float, float],
        probes: Tensor | None = None,
    ) -> None:
        self.score, self.path, self.schedule, self.x, self.ends = score, path, schedule, x, ends
        self.probes = x.new_zeros(0, *x.shape) if probes is None else probes
        self.squares = self.probes.double().square().flatten(2).sum(2)

    def times(self, s: Tensor) -> Times:
        """Return the times at ``s`` in [0, 1], on the CPU. The schedule's tau, scaled to [0, 1],
        is s - a / (2 pi) sin(2 pi s) with a = ``CONCENTRATION``, so that even steps in s are
        small near the ends, where the solution changes fastest."""
        first, last = self.schedule.tau(self.path, torch.tensor(self.ends, dtype=torch.float64))
        turns = 2 * math.pi * s
        tau = first + (last - first) * (s - CONCENTRATION / (2 * math.pi) * turns.sin())
        t = invert(partial(self.schedule.tau, self.path), tau)
        t = t.clamp(min(self.ends), max(self.ends))
        tau_ds = (last - first) * (1 - CONCENTRATION * turns.cos())
        t_ds = tau_ds / self.schedule.rate(self.path, t)
        sigma_dt = self.path.variance_dt(t) / (2 * self.path.variance(t).sqrt())
        return Times(t, t_ds, self.path.alpha_dt(t) * t_ds, sigma_dt * t_ds)

    def evaluate(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score (B, *) and an estimate of div u per probe (K, B), both float64.

        Args:
            x: (B, *) float64. t: () on the CPU.
        """
        time = t.item()
        point = x.to(self.x.dtype)
        value, forms = with_divergence(lambda x: self.score(x, time), point, self.probes)
        # u is linear in x and in the score, and z^T (dx/dx) z = z^T z
        return value.double(), self.path.velocity(self.squares, forms, t)
