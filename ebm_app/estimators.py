r"""Ways to find log p_t(x) with a model, by the name that ``--estimator`` takes.

They stand on different grounds, so that their disagreement says something: the integral of the
time score is normalised only as far as that score is exact; the probability-flow ODE, driven by
the Stein score, gives the density of its own flow, which is normalised whatever the score is; so
is the density of the reversed diffusion, for which the variational bound is a lower one.
All values are in nats.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.divergence import (
    exact_divergence,
    hutchinson,
    normal_draws,
    rademacher_probes,
)
from ebm_app.energy import QUADRATURE, TimeScoreEnergy
from ebm_app.errors import UserError, choose
from ebm_app.numerics import standard_normal_log_density, sum_except_batch
from ebm_app.paths import OneSidedPath
from ebm_app.pf_ode import SOLVERS, ClockField, clock_grid
from ebm_app.quadrature import rule_on
from ebm_app.reversible_flow import ReversibleFlow


class LogDensity(NamedTuple):
    """log p_t(x) (B,) float64, an estimate of the numerical error of each (B,), the parts (B, *)
    that sum to the value, or None, and the evaluations of the network for each example."""

    value: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int


class Estimator(ABC):
    """log p_t(x) of a model; a subclass is a frozen dataclass of its settings."""

    @abstractmethod
    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        """log p_t at ``x`` (B, *)."""


@dataclass(frozen=True)
class RatioIntegral(Estimator):
    """log N(x; 0, I) + integral of the time score from 0 to t, by fixed nodes."""

    integrator: str = QUADRATURE

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        reference = energy.reference(x)
        ratio = energy.log_ratio(x, t1=t, integrator=self.integrator)
        components = ratio.components
        if components is not None and components.shape == x.shape:
            components = components + reference
        value = ratio.value + sum_except_batch(reference)
        return LogDensity(value, ratio.error, components, ratio.nfe)


@dataclass(frozen=True)
class RatioODE(RatioIntegral):
    """The same by an adaptive solve, the paper's protocol: RK45 at 1e-6 (appendix F.2)."""

    integrator: str = "rk45"


class CountedScore:
    """A Stein score of an energy that counts its evaluations of the network, ``nfe``."""

    def __init__(self, energy: TimeScoreEnergy, source: str | None) -> None:
        self.energy, self.source, self.nfe = energy, source, 0
        self.score = energy.stein_score(source)

    def __call__(self, x: Tensor, t: float) -> Tensor:
        self.nfe += self.energy.score_cost(self.source, t)
        return self.score(x, t)


@dataclass(frozen=True)
class FlowDensity(Estimator):
    """The density of the model's own flow, by the change of variables along the probability-flow
    ODE: log N(x_0; 0, I) - integral of div u, from x back to x_0.

    Args:
        solver, num_steps, tolerance: as for :class:`ebm_app.samplers.PFODESampler`.
        num_probes: Rademacher probes of the divergence, frozen for the solve; 0 takes it exactly,
            by D backward passes at every evaluation.
        score: "head", "integral" or None, as for :meth:`TimeScoreEnergy.stein_score`.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        seed: of the probes; those of an example do not depend on its batch.

    ``error`` is the standard error over the probes, unknown (NaN) for a single one; 0 for the
    exact divergence. The error of the solver is not in it: compare two numbers of steps.
    """

    solver: str = "rk4"
    num_steps: int = 20
    tolerance: float = 1e-5
    num_probes: int = 2
    score: str | None = None
    start: float = 1e-4
    seed: int = 0

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_probes < 0:
            raise UserError(f"num_probes must not be negative: {self.num_probes}")
        solver = SOLVERS[choose("solver", self.solver, SOLVERS)](self.num_steps, self.tolerance)
        divergence = exact_divergence
        if self.num_probes:
            divergence = hutchinson(rademacher_probes(self.num_probes, x, self.seed))
        score = CountedScore(energy, self.score)
        *_, end = solver.flow(ClockField(score, energy.path), x, t, self.start, divergence)
        value = sum_except_batch(energy.reference(end.x)) + end.log_det.mean(0)
        error = torch.full_like(value, math.nan if self.num_probes else 0.0)
        if self.num_probes > 1:
            error = end.log_det.std(0, unbiased=True) / math.sqrt(self.num_probes)
        return LogDensity(value, error, None, score.nfe)


@dataclass(frozen=True)
class ReversibleFlowDensity(Estimator):
    """The density of the discrete flow of ``reversible_flow``: normalised without an error of
    discretisation, by D backward passes a step. Arguments as for :class:`FlowDensity`."""

    num_steps: int = 40
    score: str | None = None
    start: float = 1e-4

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_steps < 1:
            raise UserError(f"the flow needs at least 1 step, not {self.num_steps}")
        score = CountedScore(energy, self.score)
        times = clock_grid(energy.path, self.start, t, self.num_steps + 1)
        energy.reference(x[:1])  # refuses a path whose reference is not N(0, I)
        value = ReversibleFlow(ClockField(score, energy.path), times.tolist()).log_density(x)
        return LogDensity(value, torch.zeros_like(value), None, score.nfe)


class BoundNode(NamedTuple):
    """A node of :class:`VariationalBound`: its time r, x_r = a x + deviation e, its weight."""

    time: float
    a: float
    deviation: float
    weight: float


@lru_cache(maxsize=64)
def bound_rule(
    path: OneSidedPath, t: float, start: float, tail: float, num_nodes: int
) -> tuple[BoundNode, ...]:
    """Gauss-Legendre nodes in the log signal-to-noise ratio l = log(a^2 / w) of x_r given x_t.

    w / a^2 = alpha_t^2 (rho_r^2 - rho_t^2), with rho the ratio of noise to signal at a time; l
    runs from r = ``start`` to where w / a^2 is ``tail`` times v_t.
    """
    alpha, ratio = _alpha_and_ratio(path, t)
    first = -math.log(alpha**2 * (_alpha_and_ratio(path, start)[1] ** 2 - ratio**2))
    last = -math.log(tail * (alpha * ratio) ** 2)
    rule = rule_on(num_nodes, first, last)
    nodes = []
    for level, weight in zip(rule.nodes.tolist(), rule.weights.tolist(), strict=True):
        time = path.time_of_ratio(math.sqrt(ratio**2 + math.exp(-level) / alpha**2))
        a = _alpha_and_ratio(path, time)[0] / alpha
        nodes.append(BoundNode(time, a, a * math.exp(-level / 2), weight))
    return tuple(nodes)


def _alpha_and_ratio(path: OneSidedPath, t: float) -> tuple[float, float]:
    time = torch.tensor(t, dtype=torch.float64)
    alpha = path.alpha(time).item()
    return alpha, path.variance(time).sqrt().item() / alpha


@dataclass(frozen=True)
class VariationalBound(Estimator):
    r"""A lower bound on the log density at t of the reversed diffusion of a Stein score s,

        log p_t(x) >= log N(x; 0, m_t I) + 1/2 int E[|e - e_ref|^2 - |e - e_s|^2] dl.

    The diffusion leads from x back to x_r = a x + sqrt(w) e, a = alpha_r / alpha_t, e ~ N(0, I),
    and l = log(a^2 / w). e_s = -sqrt(w) s(x_r, r) is what the score says of the noise, and
    e_ref = sqrt(w) x_r / m_r what that of N(0, m_r I) says, m = alpha^2 + v. An exact score
    attains the bound. It needs no derivative of the network, and averages over noisy points, like
    those that the network was trained on.

    Args:
        num_nodes: in l. num_draws: of the noise at every node.
        score: "head", "integral" or None, as for :meth:`TimeScoreEnergy.stein_score`.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        tail: the integral stops where w is this share of v_t.
        seed: of the noise; that of an example does not depend on its batch.

    ``error`` is the standard error over the draws of the noise, unknown (NaN) for a single one.

    Sources: Song et al. 2021, arXiv:2101.09258, theorem 3, less the same bound for N(0, m_t I),
    which is exact and takes most of the noise away; Kingma et al. 2021, arXiv:2107.00630, for l.
    """

    num_nodes: int = 32
    num_draws: int = 2
    score: str | None = None
    start: float = 1e-4
    tail: float = 1e-5
    seed: int = 0

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_nodes < 3 or self.num_draws < 1:
            raise UserError(
                f"{self.num_nodes} nodes and {self.num_draws} draws make no bound: give at least "
                "3 and 1"
            )
        energy.reference(x[:1])  # refuses a path whose reference is not N(0, I)
        score, moment = CountedScore(energy, self.score), self._moment(energy.path, t)
        noise = normal_draws(self.num_nodes * self.num_draws, x, self.seed)
        gains = torch.zeros(self.num_draws, *x.shape, dtype=torch.float64, device=x.device)
        rule = bound_rule(energy.path, t, self.start, self.tail, self.num_nodes)
        for node, draws in zip(rule, noise.split(self.num_draws), strict=True):
            reference_score = -1 / self._moment(energy.path, node.time)
            for gain, e in zip(gains, draws, strict=True):
                point = node.a * x + node.deviation * e
                with torch.no_grad():
                    found = e + node.deviation * score(point, node.time)
                reference = e + node.deviation * reference_score * point
                gain += node.weight / 2 * (reference.double().square() - found.double().square())
        components = standard_normal_log_density(x.double() / math.sqrt(moment))
        components = components - math.log(moment) / 2 + gains.mean(0)
        error = torch.full((len(x),), math.nan, dtype=torch.float64, device=x.device)
        if self.num_draws > 1:
            error = gains.flatten(2).sum(2).std(0, unbiased=True) / math.sqrt(self.num_draws)
        return LogDensity(sum_except_batch(components), error, components, score.nfe)

    @staticmethod
    def _moment(path: OneSidedPath, t: float) -> float:
        alpha, ratio = _alpha_and_ratio(path, t)
        return alpha**2 * (1 + ratio**2)


ESTIMATORS: dict[str, type[Estimator]] = {
    "ratio": RatioIntegral,
    "ode": RatioODE,
    "pf_ode": FlowDensity,
    "pf_ode_exact": ReversibleFlowDensity,
    "elbo": VariationalBound,
}
