"""One-dimensional integrals: Gauss-Legendre rules with error estimates, and an adaptive solver.

``rate`` maps a float64 scalar tensor to a tensor (B,). Every integral returns its number of
function evaluations (nfe).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import NumericalError

Rate = Callable[[Tensor], Tensor]
#: Max evaluations of the adaptive solver
MAX_EVALUATIONS = 50_000
#: Relative and absolute tolerance of the adaptive solver
TOLERANCE = 1e-6


class Rule(NamedTuple):
    """Quadrature rule, (n,) float64 each.

    ``nodes`` are in (-1, 1). ``coarse_weights`` define a rule on about half of the nodes; they are
    zero at the other nodes.
    """

    nodes: Tensor
    weights: Tensor
    coarse_weights: Tensor


class Integral(NamedTuple):
    """Integral (B,), estimate of its absolute error (B,), and number of evaluations."""

    value: Tensor
    error: Tensor
    nfe: int


@lru_cache
@torch.inference_mode(False)  # the cached tensors may be used under autograd
def gauss_legendre(num_nodes: int) -> Rule:
    """Return the n-point Gauss-Legendre rule, n >= 3, exact for polynomials of degree 2n - 1.

    The coarse rule for error estimates needs no further evaluations. It uses every second node,
    counted from both ends, and with m nodes is exact for polynomials of degree m - 1.

    >>> rule = gauss_legendre(3)
    >>> round((rule.weights * rule.nodes**4).sum().item(), 12)  # 2 / 5
    0.4
    """
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    left = np.arange(0, (num_nodes + 1) // 2, 2)
    subset = np.union1d(left, num_nodes - 1 - left)
    moments = np.zeros(len(subset))
    moments[0] = 2.0
    coarse = np.zeros(num_nodes)
    coarse[subset] = np.linalg.solve(
        np.polynomial.legendre.legvander(nodes[subset], len(subset) - 1).T, moments
    )
    return Rule(*(torch.from_numpy(array) for array in (nodes, weights, coarse)))


def rule_on(num_nodes: int, start: float, end: float) -> Rule:
    """Return the rule of ``gauss_legendre`` on the interval from ``start`` to ``end``."""
    rule = gauss_legendre(num_nodes)
    half = (end - start) / 2
    return Rule(start + half * (rule.nodes + 1), half * rule.weights, half * rule.coarse_weights)


def integrate(rate: Rate, start: float, end: float, like: Tensor) -> Integral:
    """Integrate adaptively: solve y' = rate(t) in float64 with torchdiffeq's Dormand-Prince
    method, as in the paper (appendix F.2).

    The batch shares its step sizes, so within the tolerance a value depends on the other points of
    the batch. The reported error is the tolerance, 1e-6 (1 + |y|). The rate is only evaluated in
    [start, end].

    Args:
        like: tensor (B,) with the batch size and device.

    Raises:
        NumericalError: if the rate is not finite, the tolerance cannot be reached, or
            ``MAX_EVALUATIONS`` is exceeded.
    """
    from torchdiffeq import odeint  # imports scipy.integrate, which takes half a second

    zero, nfe = torch.zeros(like.shape, dtype=torch.float64, device=like.device), 0
    if start == end or not len(like):
        return Integral(zero, zero, 0)

    def fail(reason: str) -> NoReturn:
        raise NumericalError(
            f"The integral from {start} to {end} failed: {reason}. Use fixed nodes, unless the "
            "training of the model has diverged."
        )

    def checked_rate(t: Tensor, _: Tensor) -> Tensor:
        nonlocal nfe
        nfe += 1
        if nfe > MAX_EVALUATIONS:
            fail(f"{MAX_EVALUATIONS} evaluations are not enough")
        value = rate(t.clamp(min(start, end), max(start, end)))
        if not value.isfinite().all():  # the step size would never stop shrinking
            fail(f"the integrand is not finite at t = {t}")
        return value.double()

    times = torch.tensor([start, end], dtype=torch.float64, device=like.device)
    options = {"rtol": TOLERANCE, "atol": TOLERANCE, "method": "dopri5"}
    options["options"] = {"step_t": times[1:]}  # never step beyond the end
    try:
        states = odeint(checked_rate, zero, times, **options)
    except AssertionError as error:  # underflow of the step size
        fail(str(error))
    value = states[-1]
    return Integral(value, TOLERANCE * (1 + value.abs()), nfe)
