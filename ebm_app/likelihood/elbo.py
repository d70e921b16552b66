r"""Variational lower bound on log p_t(x) of the reverse diffusion."""

import math
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import MANY_DRAWS, Estimator, error_over_draws
from ebm_app.nets.model import LogDensityEstimate, ScoreModel
from ebm_app.paths import OneSidedPath, require_one_sided
from ebm_app.utils.fields import BoundNodes, Draws, configuration
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.random import ImageNoise
from ebm_app.utils.tensors import (
    evaluate_in_chunks,
    expand_like,
    standard_normal_log_density,
    sum_except_batch,
)

#: Time at which p_t is replaced by N(0, I), and fraction of v_t at which the integral ends.
START, TAIL = 1e-4, 1e-5
#: Weight in a guess of the neighbour with less noise, for up to 8 nodes, and for 16 or more. With
#: equal weights, the spread of the bound with 8 nodes on MNIST is 0.051 instead of 0.039 bits.
CLEARER_OF_8, CLEARER_OF_16 = 0.2, 0.5
#: Min distance of a predicted variance from 0 and 1, where its logit is infinite.
MARGIN = 1e-6


class BoundRule(NamedTuple):
    """Quadrature nodes of ``VariationalBound``, (n,) float64 each.

    Attributes:
        times: the times r.
        a, deviation: coefficients of x_r = a x + deviation e.
        variances: v_r of the path.
        moments: m_r = alpha_r^2 + v_r.
        weights: quadrature weights of an integral over l.
    """

    times: Tensor
    a: Tensor
    deviation: Tensor
    variances: Tensor
    moments: Tensor
    weights: Tensor


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # cached tensors may be differentiated later
def bound_rule(path: OneSidedPath, t: float, num_nodes: int) -> BoundRule:
    r"""Return nodes for an integral over l = log(a^2 / w), the log signal-to-noise ratio of x_r
    given x_t, with w = deviation^2.

    With rho_r = sqrt(v_r) / alpha_r, s^2 = w / a^2 = alpha_t^2 (rho_r^2 - rho_t^2) decreases from
    its value at r = ``START`` to ``TAIL`` times v_t. The nodes are Gauss-Legendre nodes in

        y = 2 arsinh(1 / sqrt(s^2 + v_t)),   dl/dy = (s^2 + v_t) / s^2 / tanh(y / 2).

    This places few nodes where the integrand is small: like the integrand, y is proportional to
    the signal far from x_t, and to w near x_t.
    """
    ends = torch.tensor([t, START], dtype=torch.float64)
    alpha, rho2 = path.alpha(ends), path.variance(ends) / path.alpha(ends).square()
    v_t, alpha_t = path.variance(ends)[0].item(), alpha[0].item()
    widest = alpha_t**2 * (rho2[1] - rho2[0]).item()
    rule = rule_on(
        num_nodes, *(2 * math.asinh(1 / math.sqrt(s2 + v_t)) for s2 in (widest, TAIL * v_t))
    )
    whole = (rule.nodes / 2).sinh().square().reciprocal()  # s^2 + v_t
    s2 = whole - v_t
    times = path.log_snr_inverse((path.c * alpha_t**2 / whole).log())
    a = path.alpha(times) / alpha_t
    variances = path.variance(times)
    moments = path.alpha(times).square() + variances
    weights = rule.weights * whole / s2 / (rule.nodes / 2).tanh()
    return BoundRule(times, a, a * s2.sqrt(), variances, moments, weights)


class Residuals(NamedTuple):
    """One draw of the noise at each of n nodes, for B points, (n, B, *) float64 each.

    Attributes:
        e: the noise.
        residual: e - e_s.
        variance: predicted variance V of e given x_r.
    """

    e: Tensor
    residual: Tensor
    variance: Tensor


@configuration
class VariationalBound(Estimator):
    r"""Lower bound on the log density at t of the reverse diffusion of a Stein score s,

        log p_t(x) >= log N(x; 0, m_t I) + 1/2 int E[|e - e_ref|^2 - |e - e_s|^2] dl.

    The diffusion goes from x back to x_r = a x + sqrt(w) e, a = alpha_r / alpha_t, e ~ N(0, I),
    and l = log(a^2 / w). e_s = -sqrt(w) s(x_r, r) is the noise that the score predicts, and
    e_ref = sqrt(w) x_r / m_r is the prediction of the score of N(0, m_r I), m = alpha^2 + v. The
    bound is tight for an exact score.

    The mean of |e - e_ref|^2 has a closed form. That of |e - e_s|^2 is estimated from one draw of
    e per node. Its control variate is g(e)^2 - V^2 - q^2, which has mean 0, where g(e) = V e - q
    is a guess of the residual e - e_s of each dimension. The guess at a node uses only the two
    neighbouring nodes (``guesses``), so it is independent of e and adds no bias.

    Args:
        num_nodes: quadrature nodes, see ``bound_rule``.
        num_draws: independent estimates, which are averaged.

    ``error`` is the standard error over the noise. It is estimated from the differences of
    |e - e_s|^2 - |g(e)|^2 between neighbouring nodes, with the rows of an image (its last
    dimension) treated as uncorrelated. As the means of the nodes differ too, it is slightly too
    large, and up to twice too large for a model without a predicted variance. From 8 draws on, it
    is estimated from their spread instead.

    Sources: Song et al. 2021, arXiv:2101.09258, theorem 3; Kingma et al. 2021, arXiv:2107.00630,
    for l.
    """

    num_nodes: BoundNodes = 16
    num_draws: Draws = 1

    error_is_drawn: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(
        self, model: ScoreModel, x: Tensor, t: float, noise: ImageNoise
    ) -> LogDensityEstimate:
        path = require_one_sided(model.path)
        rule = bound_rule(path, t, self.num_nodes)
        e = noise.normal_draws(self.num_draws * self.num_nodes, x)
        draws = [
            integrate_draw(x, rule, draw_residuals(model, x, rule, own))
            for own in e.split(self.num_nodes)
        ]
        integrals, variances = (torch.stack(column) for column in zip(*draws, strict=True))
        components = integrals.mean(0)
        time = torch.tensor(t, dtype=torch.float64)
        moment = (path.alpha(time).square() + path.variance(time)).item()
        components += standard_normal_log_density(x.double() / math.sqrt(moment))
        components -= math.log(moment) / 2
        nfe = self.num_draws * sum(model.score_cost(time) for time in rule.times.tolist())
        error = (variances.mean(0) / self.num_draws).sqrt()
        if self.num_draws >= MANY_DRAWS:
            error = error_over_draws(integrals.flatten(2).sum(2))
        return LogDensityEstimate(sum_except_batch(components), error, components, nfe)


def draw_residuals(model: ScoreModel, x: Tensor, rule: BoundRule, e: Tensor) -> Residuals:
    """Return the residuals of the noise ``e`` (n, B, *) at the nodes, for points x (B, *).

    For a model without a predicted variance, V is the mean of e (e - e_s) over the dimensions of a
    point. By Stein's lemma, its expectation is the mean slope of the residual, which is V for an
    exact score.
    """
    points = expand_like(rule.a, e) * x + expand_like(rule.deviation, e) * e
    if model.has_variance:
        score, predicted = evaluate_in_chunks(model.score_and_variance, points, rule.times)
    else:
        (score,) = evaluate_in_chunks(lambda x, t: (model.score(x, t),), points, rule.times)
    residual = (e + expand_like(rule.deviation, e) * score).double()
    e = e.double()
    if model.has_variance:
        # Var[e | x_r] from Var[eps | x_r], where sqrt(w) e is a part of the noise of the path
        share = expand_like(rule.deviation.square() / rule.variances, e)
        return Residuals(e, residual, 1 - share + share * predicted.double())
    slope = (e * residual).flatten(2).mean(2).view(*e.shape[:2], *(1 for _ in x.shape[1:]))
    return Residuals(e, residual, slope.expand(e.shape))


def guesses(rule: BoundRule, draws: Residuals) -> tuple[Tensor, Tensor]:
    """Return V and q (n, B, *) of the guess V e - q of the residuals at each node, from the
    draws at its two neighbours; the first and the last node have one neighbour.

    If a dimension of x_t has the density N(x - b, s^2), the residual at a node with
    signal-to-noise ratio k = a^2 / w is V e - q with

        V = k s^2 / (1 + k s^2),   q = sqrt(k) (1 - V) b.

    Each node thus gives s^2 = V / ((1 - V) k) from its variance, and b from q = V e - (e - e_s).
    The guess uses weighted means of log s^2 and of q over the neighbours. The weight of the
    neighbour with less noise is smaller for few nodes, because its errors grow faster with the
    distance.
    """
    log_ratio = expand_like(2 * (rule.a / rule.deviation).log(), draws.e)
    variance = draws.variance.clamp(MARGIN, 1 - MARGIN)
    log_s2 = variance.logit() - log_ratio
    b = (variance * draws.e - draws.residual) / (1 - variance) * (-log_ratio / 2).exp()
    share = min(max((len(b) - 8) / 8, 0.0), 1.0)
    clearer = CLEARER_OF_8 + share * (CLEARER_OF_16 - CLEARER_OF_8)

    def neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
        # slices, because copying an index tensor to a GPU makes the host wait
        return torch.cat([x[1:2], x[:-1]]), torch.cat([x[1:], x[-2:-1]])

    weights = 1 - clearer, clearer
    sides = [*zip(weights, neighbours(log_s2), neighbours(b), strict=True)]
    mean_log_s2 = sum(weight * log_s2 for weight, log_s2, _ in sides)
    # 1 - V of a Gaussian is sigmoid(-log k s^2)
    offset = sum(weight * (-log_s2 - log_ratio).sigmoid() * b for weight, log_s2, b in sides)
    return (mean_log_s2 + log_ratio).sigmoid(), (log_ratio / 2).exp() * offset


def integrate_draw(x: Tensor, rule: BoundRule, draws: Residuals) -> tuple[Tensor, Tensor]:
    """Return the integral of the bound per dimension, (B, *) float64, from one draw per node, and
    the variance (B,) of its sum."""
    a, deviation, moments, half = (
        expand_like(column, draws.e)
        for column in (rule.a, rule.deviation, rule.moments, rule.weights / 2)
    )
    slope, offset = guesses(rule, draws)
    excess = draws.residual.square() - (slope * draws.e - offset).square()
    shrink = deviation / moments
    reference = (1 - deviation * shrink).square() + (shrink * a * x.double()).square()
    integral = (half * (reference - slope.square() - offset.square() - excess)).sum(0)
    changes = (half * excess).sum(-1).diff(dim=0)
    return integral, changes.square().sum(0).reshape(len(x), -1).sum(1) / 2
