"""Integrating a rate over an interval: Gauss-Legendre rules with an error estimate, and adaptive
solves.

``rate`` maps a float64 scalar tensor to a tensor (B,), in units of the integral per unit of its
argument; every integral returns how many times the rate was evaluated (nfe).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import NumericalError

Rate = Callable[[Tensor], Tensor]
#: evaluations after which an adaptive solve is given up
MAX_EVALUATIONS = 50_000


class Rule(NamedTuple):
    """Nodes in (-1, 1), weights, and the weights of a rule on about half of the nodes, which are
    zero on the others: (n,) float64."""

    nodes: Tensor
    weights: Tensor
    coarse_weights: Tensor


class Integral(NamedTuple):
    """An integral (B,), the estimate of its absolute error (B,) and the number of evaluations."""

    value: Tensor
    error: Tensor
    nfe: int


@lru_cache
@torch.inference_mode(False)  # what is kept may be differentiated later
def gauss_legendre(num_nodes: int) -> Rule:
    """The n-point Gauss-Legendre rule, n >= 3, exact for polynomials up to degree 2n - 1.

    Its error estimate needs no further evaluation: the coarse rule interpolates through every
    second node, counted from both ends, and is exact to the number of those nodes less one.

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
    """The rule of ``gauss_legendre`` for the interval from ``start`` to ``end``."""
    rule = gauss_legendre(num_nodes)
    half = (end - start) / 2
    return Rule(start + half * (rule.nodes + 1), half * rule.weights, half * rule.coarse_weights)


def dopri5(rate: Rate, zero: Tensor, start: float, end: float, rtol: float, atol: float) -> Tensor:
    """Dormand-Prince 5(4) by torchdiffeq."""
    from torchdiffeq import odeint  # imports SciPy's solvers, which takes half a second

    ends = torch.tensor([start, end], dtype=torch.float64, device=zero.device)
    options = {"step_t": ends[1:]}  # it steps to the end, not beyond
    try:
        return odeint(
            lambda t, _: rate(t),
            zero,
            ends,
            rtol=rtol,
            atol=atol,
            method="dopri5",
            options=options,
        )[-1]
    except AssertionError as error:  # the step size underflows
        raise NumericalError(str(error)) from error


def rk45(rate: Rate, zero: Tensor, start: float, end: float, rtol: float, atol: float) -> Tensor:
    """The same method by SciPy, the paper's protocol at 1e-6 (appendix F.2)."""
    from scipy.integrate import solve_ivp  # half a second to import

    def in_numpy(t: float, _: np.ndarray) -> np.ndarray:
        time = torch.tensor(t, dtype=torch.float64, device=zero.device)
        return rate(time).detach().cpu().numpy()

    start_state = zero.cpu().numpy()
    found = solve_ivp(in_numpy, (start, end), start_state, t_eval=(end,), rtol=rtol, atol=atol)
    if not found.success:
        raise NumericalError(found.message)
    return torch.from_numpy(found.y[:, -1]).to(zero.device)


#: adaptive solvers by the name of a setting
ADAPTIVE = {"dopri5": dopri5, "rk45": rk45}


def integrate(
    rate: Rate,
    start: float,
    end: float,
    like: Tensor,
    solver: str = "rk45",
    rtol: float = 1e-6,
    atol: float = 1e-6,
) -> Integral:
    """The integral by an adaptive solve of y' = rate(t), in float64.

    One step size serves the whole batch, so that a value depends on its batch mates within the
    tolerance. The error is stated as the tolerance asked for, atol + rtol |y|. The rate is never
    evaluated outside [start, end].

    Args:
        like: a tensor (B,) that gives the batch size and device.
        solver: a key of ``ADAPTIVE``.

    Raises:
        NumericalError: where the rate is not finite (an adaptive step would only shrink), where
            the tolerance cannot be reached, or after ``MAX_EVALUATIONS`` evaluations.
    """
    zero = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
    if start == end or not len(like):
        return Integral(zero, zero, 0)
    nfe, low, high = 0, min(start, end), max(start, end)

    def checked_rate(t: Tensor) -> Tensor:
        nonlocal nfe
        nfe += 1
        if nfe > MAX_EVALUATIONS:
            raise NumericalError(f"{MAX_EVALUATIONS} evaluations are not enough")
        value = rate(t.clamp(low, high))
        if not value.isfinite().all():
            raise NumericalError(f"the integrand is not finite at t = {t.item()}")
        return value.double()

    try:
        value = ADAPTIVE[solver](checked_rate, zero, start, end, rtol, atol)
    except NumericalError as error:
        raise NumericalError(
            f"the integral from {start} to {end} by {solver} failed: {error}. Loosen the "
            "tolerance or use fixed nodes; where the training of the model has diverged, neither "
            "helps"
        ) from error
    return Integral(value, atol + rtol * value.abs(), nfe)
