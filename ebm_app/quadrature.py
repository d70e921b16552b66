"""Integrating a rate over an interval: Gauss-Legendre rules with an error estimate, and ODE
solvers.

``rate`` maps a float64 scalar tensor to a tensor (B,), in units of the integral per unit of its
argument; every integral returns how many times the rate was evaluated (nfe).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torchdiffeq import odeint

Rate = Callable[[Tensor], Tensor]


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
def gauss_legendre(num_nodes: int) -> Rule:
    """The n-point Gauss-Legendre rule, exact for polynomials up to degree 2n - 1.

    Its error estimate needs no further evaluation: the coarse rule interpolates through every
    second node (exact to the number of those nodes less one), so its distance from the fine rule
    is larger than the fine rule's own error unless the integrand is unresolved by both. Nodes are
    counted from either end: a lopsided half of them would integrate an even function by as many
    distinct values as the whole rule has, and its distance would say nothing.

    Raises:
        ValueError: for fewer than 3 nodes.
    """
    if num_nodes < 3:
        raise ValueError("a Gauss-Legendre rule with an error estimate needs at least 3 nodes")
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
    """The rule of :func:`gauss_legendre` for the interval from ``start`` to ``end``."""
    rule = gauss_legendre(num_nodes)
    half = (end - start) / 2
    return Rule(start + half * (rule.nodes + 1), half * rule.weights, half * rule.coarse_weights)


class Counter:
    """Wraps a rate, counts its evaluations and stops a solve that has no end.

    Raises:
        RuntimeError: at the first value that is not finite (an adaptive step would only shrink),
            and after ``limit`` evaluations.
    """

    limit = 50_000

    def __init__(self, rate: Rate) -> None:
        self.rate, self.nfe = rate, 0

    def __call__(self, time: Tensor) -> Tensor:
        if self.nfe >= self.limit:
            raise RuntimeError(
                f"the solver has not ended after {self.limit} evaluations, at t = {time.item()}: "
                "loosen the tolerance or use fixed nodes"
            )
        self.nfe += 1
        value = self.rate(time)
        if not value.isfinite().all():
            raise RuntimeError(f"the integrand is not finite at t = {time.item()}")
        return value


def integrate_dopri5(
    rate: Rate, start: float, end: float, like: Tensor, rtol: float = 1e-6, atol: float = 1e-6
) -> Integral:
    """Adaptive Dormand-Prince solve of y' = rate(t) by torchdiffeq, in float64.

    One step size serves the whole batch, so that a value depends on its batch mates within the
    tolerance. The error is stated as the tolerance asked for, atol + rtol |y|. The rate is
    evaluated between ``start`` and ``end`` only, in either order.

    Args:
        like: a tensor (B,) that gives the batch size and device.

    Raises:
        RuntimeError: where the step size underflows, with what to try; where the rate is not
            finite; after ``Counter.limit`` evaluations.
    """
    counter = Counter(rate)
    times = torch.tensor([start, end], dtype=torch.float64, device=like.device)
    state = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
    if start == end or not len(like):
        return Integral(state, state, 0)
    # by default the solver steps past the end and interpolates back: no rate exists at t > 1
    options = {"step_t": times[1:], "first_step": abs(end - start) * 1e-4}
    try:
        solution = odeint(
            lambda t, _: counter(t).double(),
            state,
            times,
            rtol=rtol,
            atol=atol,
            method="dopri5",
            options=options,
        )
    except AssertionError as error:
        raise RuntimeError(
            f"the ODE solver could not reach rtol {rtol}, atol {atol} from t = {start} to {end} "
            f"({error}): loosen the tolerance or use fixed nodes"
        ) from error
    return Integral(solution[-1], atol + rtol * solution[-1].abs(), counter.nfe)


def integrate_rk45(
    rate: Rate, start: float, end: float, like: Tensor, rtol: float = 1e-6, atol: float = 1e-6
) -> Integral:
    """Adaptive Runge-Kutta 4(5) solve by SciPy, the paper's protocol (appendix F.2); as above.

    Raises:
        RuntimeError: where SciPy reports failure, with its message; where the rate is not finite;
            after ``Counter.limit`` evaluations.
    """
    counter = Counter(rate)

    def derivative(t: float, _: np.ndarray) -> np.ndarray:
        time = torch.tensor(t, dtype=torch.float64, device=like.device)
        return counter(time).detach().double().cpu().numpy()

    if start == end or not len(like):
        zero = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        return Integral(zero, zero, 0)
    initial = np.zeros(like.shape[0])
    solution = solve_ivp(derivative, (start, end), initial, method="RK45", rtol=rtol, atol=atol)
    if not solution.success:
        raise RuntimeError(
            f"SciPy's RK45 could not reach rtol {rtol}, atol {atol} from t = {start} to {end} "
            f"({solution.message}): loosen the tolerance or use fixed nodes"
        )
    value = torch.from_numpy(solution.y[:, -1].copy()).to(like.device)
    return Integral(value, atol + rtol * value.abs(), counter.nfe)


SOLVERS = {"dopri5": integrate_dopri5, "rk45": integrate_rk45}
