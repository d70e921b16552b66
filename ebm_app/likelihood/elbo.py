"""log p_t(x) of the reversed diffusion, bounded from below."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.fields import Draws, Fraction, Nodes, Seed
from ebm_app.likelihood.estimator import CountedScore, Estimator, LogDensity
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics import standard_normal_log_density, sum_except_batch
from ebm_app.paths import OneSidedPath
from ebm_app.probability_flow.divergence import normal_draws
from ebm_app.quadrature import rule_on


class BoundNode(NamedTuple):
    """A node of ``VariationalBound``: its time r, x_r = a x + deviation e, the path's variance at
    r, m_r = alpha_r^2 + v_r, and the weight in an integral over l."""

    time: float
    a: float
    deviation: float
    variance: float
    moment: float
    weight: float


@lru_cache(maxsize=64)
def bound_rule(
    path: OneSidedPath, t: float, start: float, tail: float, num_nodes: int
) -> tuple[BoundNode, ...]:
    r"""Nodes for an integral over l = log(a^2 / w), the log signal-to-noise ratio of x_r given x_t.

    With rho_r = sqrt(v_r) / alpha_r, s^2 = w / a^2 = alpha_t^2 (rho_r^2 - rho_t^2) falls from r =
    ``start`` to where it is ``tail`` times v_t. The nodes are those of Gauss-Legendre in

        y = 2 arsinh(1 / sqrt(s^2 + v_t)),   dl/dy = (s^2 + v_t) / s^2 / tanh(y / 2).

    Between the two ends y is the log signal-to-noise ratio of x_r itself. Far away it is
    proportional to the signal, and near x_t to w, as what is integrated is: few nodes lie where
    nothing happens.
    """
    alpha, ratio = _alpha_and_ratio(path, t)
    least = (alpha * ratio) ** 2
    widest = alpha**2 * (_alpha_and_ratio(path, start)[1] ** 2 - ratio**2)
    ends = [2 * math.asinh(1 / math.sqrt(s2 + least)) for s2 in (widest, tail * least)]
    rule = rule_on(num_nodes, *ends)
    nodes = []
    for y, weight in zip(rule.nodes.tolist(), rule.weights.tolist(), strict=True):
        whole = math.sinh(y / 2) ** -2
        time = path.time_of_ratio(math.sqrt(whole) / alpha)
        alpha_r, ratio_r = _alpha_and_ratio(path, time)
        a, variance, s2 = alpha_r / alpha, (alpha_r * ratio_r) ** 2, whole - least
        deviation, moment = a * math.sqrt(s2), _marginal_moment(path, time)
        weight = weight * whole / s2 / math.tanh(y / 2)
        nodes.append(BoundNode(time, a, deviation, variance, moment, weight))
    return tuple(nodes)


def _alpha_and_ratio(path: OneSidedPath, t: float) -> tuple[float, float]:
    time = torch.tensor(t, dtype=torch.float64)
    alpha = path.alpha(time).item()
    return alpha, path.variance(time).sqrt().item() / alpha


class Residual(NamedTuple):
    """A guess slope * e - offset of the residual e - e_s, made without this noise e; parts (B, *)
    or numbers."""

    slope: Tensor | float
    offset: Tensor

    def centred_square(self, e: Tensor) -> Tensor:
        """(slope e - offset)^2 less its mean over e ~ N(0, I)."""
        return (self.slope * e - self.offset).square() - self.mean_square()

    def mean_square(self) -> Tensor:
        """The mean of (slope e - offset)^2 over e ~ N(0, I)."""
        return self.slope**2 + self.offset.square()


@dataclass(frozen=True)
class VariationalBound(Estimator):
    r"""A lower bound on the log density at t of the reversed diffusion of a Stein score s,

        log p_t(x) >= log N(x; 0, m_t I) + 1/2 int E[|e - e_ref|^2 - |e - e_s|^2] dl.

    The diffusion leads from x back to x_r = a x + sqrt(w) e, a = alpha_r / alpha_t, e ~ N(0, I),
    and l = log(a^2 / w). e_s = -sqrt(w) s(x_r, r) is the noise that the score predicts, and
    e_ref = sqrt(w) x_r / m_r the one that the score of N(0, m_r I) predicts, m = alpha^2 + v. An
    exact score attains the bound. It needs no derivative of the network, and averages over noisy
    points, like those that the network was trained on.

    The mean of |e - e_ref|^2 is known. That of |e - e_s|^2 is estimated with a control variate: a
    guess g(e) = V e - q of the residual of each component, of which g(e)^2 - V^2 - q^2 has mean 0
    and is subtracted. V is the posterior variance of e that the model predicts, q = V e' - (e' -
    e'_s), both averaged over the other draws e' at the node; they know nothing of e, so that no
    bias enters. On images this takes the standard deviation down to a half or a quarter. A single
    draw, or a model without a variance, takes e - e_ref for the guess.

    Args:
        num_nodes: see ``bound_rule``. num_draws: of the noise at every node.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        tail: the integral stops where w is this share of v_t.
        seed: of the noise; that of an example does not depend on its batch.

    ``error`` is the standard error over the draws, from their spread at each of the nodes, whose
    draws are independent; unknown (NaN) for a single draw.

    Sources: Song et al. 2021, arXiv:2101.09258, theorem 3; Kingma et al. 2021, arXiv:2107.00630,
    for l.
    """

    num_nodes: Nodes = 32
    num_draws: Draws = 2
    score: str | None = None
    start: Fraction = 1e-4
    tail: Fraction = 1e-5
    seed: Seed = 0

    note: ClassVar[str] = (
        "a lower bound on the log density of the model's own reversed diffusion, which is "
        "normalised; averaged over noisy copies of the image"
    )
    normalised: ClassVar[bool] = True
    error_is_drawn: ClassVar[bool] = True

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_nodes < 3 or self.num_draws < 1:
            raise UserError(
                f"{self.num_nodes} nodes and {self.num_draws} draws make no bound: give at least "
                "3 and 1"
            )
        energy.path.check_reference()
        noise = normal_draws(self.num_nodes * self.num_draws, x, self.seed)
        rule = bound_rule(energy.path, t, self.start, self.tail, self.num_nodes)
        score, moment = CountedScore(energy, self.score), _marginal_moment(energy.path, t)
        components = standard_normal_log_density(x.double() / math.sqrt(moment))
        components = components - math.log(moment) / 2
        variance = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for node, draws in zip(rule, noise.split(self.num_draws), strict=True):
            gains = node.weight / 2 * self._gains(score, x, node, draws)
            components += gains.mean(0)
            if self.num_draws > 1:
                variance += gains.flatten(2).sum(2).var(0, unbiased=True) / self.num_draws
        error = variance.sqrt() if self.num_draws > 1 else torch.full_like(variance, math.nan)
        return LogDensity(sum_except_batch(components), error, components, score.nfe)

    def _gains(self, score: CountedScore, x: Tensor, node: BoundNode, draws: Tensor) -> Tensor:
        """Estimates of E[(e - e_ref)^2 - (e - e_s)^2] per component: (K, B, *) float64."""
        shrink = node.deviation / node.moment
        reference = Residual(1 - node.deviation * shrink, shrink * node.a * x.double())
        found = [self._residual(score, x, node, e) for e in draws]
        guesses = [reference] * len(draws)
        if len(draws) > 1 and found[0][1] is not None:
            guesses = _guesses(found, draws.double())
        return torch.stack(
            [
                reference.mean_square() - residual.square() + guess.centred_square(e)
                for (residual, _), guess, e in zip(found, guesses, draws.double(), strict=True)
            ]
        )

    @staticmethod
    def _residual(
        score: CountedScore, x: Tensor, node: BoundNode, e: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """e - e_s and the predicted variance of e given x_r, if any: (B, *) float64."""
        found, variance = score.with_noise_variance(node.a * x + node.deviation * e, node.time)
        if variance is not None:
            share = node.deviation**2 / node.variance
            variance = 1 - share + share * variance.double()
        return (e + node.deviation * found).double(), variance


def _guesses(found: list[tuple[Tensor, Tensor]], draws: Tensor) -> list[Residual]:
    """For every draw the guess of its residual from the residuals and variances of the others."""
    slopes = torch.stack([variance for _, variance in found])
    offsets = slopes * draws - torch.stack([residual for residual, _ in found])
    others = len(draws) - 1
    return [
        Residual((slopes.sum(0) - slope) / others, (offsets.sum(0) - offset) / others)
        for slope, offset in zip(slopes, offsets, strict=True)
    ]


def _marginal_moment(path: OneSidedPath, t: float) -> float:
    """m_t = alpha_t^2 + v_t."""
    alpha, ratio = _alpha_and_ratio(path, t)
    return alpha**2 * (1 + ratio**2)
