"""log p_t(x) of the reversed diffusion, bounded from below."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import LogDensity, TimeScoreEnergy
from ebm_app.paths import OneSidedPath
from ebm_app.paths.divergence import normal_draws
from ebm_app.utils.fields import Draws, Fraction, Nodes, Seed, configuration
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch


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
    r"""Nodes for an integral over l = log(a^2 / w), the log signal-to-noise of x_r given x_t.

    With rho_r = sqrt(v_r) / alpha_r, s^2 = w / a^2 = alpha_t^2 (rho_r^2 - rho_t^2) falls from r =
    ``start`` to where it is ``tail`` times v_t. The nodes are those of Gauss-Legendre in

        y = 2 arsinh(1 / sqrt(s^2 + v_t)),   dl/dy = (s^2 + v_t) / s^2 / tanh(y / 2).

    Few nodes lie where nothing happens: far away y is proportional to the signal, and near x_t to
    w, as what is integrated is.
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


class Draw(NamedTuple):
    """A draw e of the noise at a node, e - e_s, and the variance V of e given x_r that the model
    predicts, if any: (B, *) float64."""

    e: Tensor
    residual: Tensor
    variance: Tensor | None


class Guess(NamedTuple):
    """A guess slope * e - offset of the residual e - e_s, made without this noise e; parts (B, *)
    or numbers."""

    slope: Tensor | float
    offset: Tensor

    def mean_square(self) -> Tensor:
        """The mean of (slope e - offset)^2 over e ~ N(0, I)."""
        return self.slope**2 + self.offset.square()


@configuration
class VariationalBound(Estimator):
    r"""A lower bound on the log density at t of the reversed diffusion of a Stein score s,

        log p_t(x) >= log N(x; 0, m_t I) + 1/2 int E[|e - e_ref|^2 - |e - e_s|^2] dl.

    The diffusion leads from x back to x_r = a x + sqrt(w) e, a = alpha_r / alpha_t, e ~ N(0, I),
    and l = log(a^2 / w). e_s = -sqrt(w) s(x_r, r) is the noise that the score predicts, and
    e_ref = sqrt(w) x_r / m_r the one that the score of N(0, m_r I) predicts, m = alpha^2 + v. An
    exact score attains the bound.

    The mean of |e - e_ref|^2 is known. That of |e - e_s|^2 is estimated with a control variate: a
    guess g(e) = V e - q of the residual of each component, of which g(e)^2 - V^2 - q^2 has mean 0
    and is subtracted. V is the posterior variance of e that the model predicts, q = V e' - (e' -
    e'_s), both averaged over the other draws e' at the node, so that no bias enters. A single
    draw, or a model without a variance, takes e - e_ref for the guess.

    Args:
        num_nodes: see ``bound_rule``. num_draws: of the noise at every node.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        tail: the integral stops where w is this share of v_t.
        seed: of the noise; that of an example does not depend on its batch.

    ``error`` is the standard error over the draws by the jackknife at each of the nodes, whose
    draws are independent of each other's; unknown (NaN) for fewer than three draws.

    Sources: Song et al. 2021, arXiv:2101.09258, theorem 3; Kingma et al. 2021, arXiv:2107.00630,
    for l.
    """

    num_nodes: Nodes = 16
    num_draws: Draws = 4
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
        energy.path.check_reference()
        noise = normal_draws(self.num_nodes * self.num_draws, x, self.seed)
        rule = bound_rule(energy.path, t, self.start, self.tail, self.num_nodes)
        moment = _marginal_moment(energy.path, t)
        components = standard_normal_log_density(x.double() / math.sqrt(moment))
        components = components - math.log(moment) / 2
        variance = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for node, noises in zip(rule, noise.split(self.num_draws), strict=True):
            draws = [_draw(energy, x, node, e) for e in noises]
            components += _gain(x, node, draws)
            if self.num_draws > 2:
                without = [sum_except_batch(_gain(x, node, rest)) for rest in _but_one(draws)]
                variance += _jackknife(torch.stack(without))
        error = variance.sqrt() if self.num_draws > 2 else torch.full_like(variance, math.nan)
        nfe = self.num_draws * sum(energy.score_cost(node.time) for node in rule)
        return LogDensity(sum_except_batch(components), error, components, nfe)


def _draw(energy: TimeScoreEnergy, x: Tensor, node: BoundNode, e: Tensor) -> Draw:
    found, variance = energy.with_noise_variance(node.a * x + node.deviation * e, node.time)
    if variance is not None:
        share = node.deviation**2 / node.variance
        variance = 1 - share + share * variance.double()
    return Draw(e.double(), (e + node.deviation * found).double(), variance)


def _gain(x: Tensor, node: BoundNode, draws: Sequence[Draw]) -> Tensor:
    """What a node adds to the bound, per component, by an estimate of E[|e - e_ref|^2 - |e -
    e_s|^2] from its draws: (B, *) float64."""
    shrink = node.deviation / node.moment
    reference = Guess(1 - node.deviation * shrink, shrink * node.a * x.double())
    total = 0.0
    for draw, others in zip(draws, _but_one(draws), strict=True):
        guess = reference
        if others and draw.variance is not None:
            slope = sum(other.variance for other in others) / len(others)
            offsets = [other.variance * other.e - other.residual for other in others]
            guess = Guess(slope, sum(offsets) / len(others))
        centred = (guess.slope * draw.e - guess.offset).square() - guess.mean_square()
        total = total + (draw.residual.square() - centred)
    return node.weight / 2 * (reference.mean_square() - total / len(draws))


def _but_one(draws: Sequence[Draw]) -> list[Sequence[Draw]]:
    """For every draw the others."""
    return [draws[:k] + draws[k + 1 :] for k in range(len(draws))]


def _jackknife(without: Tensor) -> Tensor:
    """The variance (B,) of an estimate from K draws, from what it is without each of them (K, B).

    As the draws serve each other as guesses, their spread would understate it. The jackknife errs
    on the large side (Efron and Stein 1981, https://doi.org/10.1214/aos/1176345462).
    """
    draws = len(without)
    return (draws - 1) / draws * (without - without.mean(0)).square().sum(0)


def _marginal_moment(path: OneSidedPath, t: float) -> float:
    """m_t = alpha_t^2 + v_t."""
    alpha, ratio = _alpha_and_ratio(path, t)
    return alpha**2 * (1 + ratio**2)
