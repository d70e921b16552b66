r"""Variational lower bound on log p_t(x) of the reversed diffusion."""

import math
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import PointEstimator
from ebm_app.nets.density import MomentsDensity, evaluate_in_chunks, rows_per_call
from ebm_app.nets.protocols import LogDensityEstimate, SteinScore, require
from ebm_app.paths import OneSidedPath, require_one_sided
from ebm_app.paths.divergence import normal_draws
from ebm_app.utils.fields import Draws, Nodes, Seed, configuration
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.tensors import expand_like, standard_normal_log_density, sum_except_batch

#: Time at which p_t is replaced by N(0, I), and fraction of v_t at which the integral ends.
START, TAIL = 1e-4, 1e-5


class BoundRule(NamedTuple):
    """Nodes of ``VariationalBound``, (n,) float64 each.

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
    given x_t.

    With rho_r = sqrt(v_r) / alpha_r, s^2 = w / a^2 = alpha_t^2 (rho_r^2 - rho_t^2) decreases from
    its value at r = ``START`` to ``TAIL`` times v_t. The nodes are those of Gauss-Legendre in

        y = 2 arsinh(1 / sqrt(s^2 + v_t)),   dl/dy = (s^2 + v_t) / s^2 / tanh(y / 2).

    This places few nodes where the integrand is small: far from x_t, y is proportional to the
    signal, and near x_t to w, as the integrand is.
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
    """K draws of the noise at each of n nodes, for B points.

    Attributes:
        e: the noise, (n, K, B, *) float64.
        residual: e - e_s, (n, K, B, *) float64.
        variance: predicted variance V of e given x_r, (n, K, B, *) float64, or None.
    """

    e: Tensor
    residual: Tensor
    variance: Tensor | None

    def without(self, index: int) -> "Residuals":
        """Return all draws but one."""
        kept = [k for k in range(self.e.shape[1]) if k != index]
        return Residuals(*(None if column is None else column[:, kept] for column in self))


@configuration
class VariationalBound(PointEstimator):
    r"""Lower bound on the log density at t of the reversed diffusion of a Stein score s,

        log p_t(x) >= log N(x; 0, m_t I) + 1/2 int E[|e - e_ref|^2 - |e - e_s|^2] dl.

    The diffusion goes from x back to x_r = a x + sqrt(w) e, a = alpha_r / alpha_t, e ~ N(0, I),
    and l = log(a^2 / w). e_s = -sqrt(w) s(x_r, r) is the noise that the score predicts, and
    e_ref = sqrt(w) x_r / m_r is the prediction of the score of N(0, m_r I), m = alpha^2 + v. The
    bound is attained by an exact score.

    The mean of |e - e_ref|^2 is known. That of |e - e_s|^2 is estimated with a control variate: a
    guess g(e) = V e - q of the residual of each dimension, of which g(e)^2 - V^2 - q^2 has mean 0
    and is subtracted. V is the posterior variance of e that the model predicts, q = V e' - (e' -
    e'_s), both averaged over the other draws e' at the node, which introduces no bias. A single
    draw, or a model without a variance, uses e - e_ref as the guess.

    Args:
        num_nodes: quadrature nodes, see ``bound_rule``.
        num_draws: draws of the noise at each node.
        seed: seed of the noise; the noise of an example does not depend on its batch.

    ``error`` is the standard error over the draws, by the jackknife at each node; the draws of
    different nodes are independent. It is NaN for fewer than three draws.

    Sources: Song et al. 2021, arXiv:2101.09258, theorem 3; Kingma et al. 2021, arXiv:2107.00630,
    for l.
    """

    num_nodes: Nodes = 16
    num_draws: Draws = 4
    seed: Seed = 0

    note: ClassVar[str] = (
        "a lower bound on the log density of the model's own reversed diffusion, which is "
        "normalised; averaged over noisy copies of the image"
    )
    needs: ClassVar[type] = SteinScore
    normalised: ClassVar[bool] = True
    error_is_drawn: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, model: SteinScore, x: Tensor, t: float) -> LogDensityEstimate:
        model = require(model, SteinScore, "estimator elbo")
        path = require_one_sided(model.path)
        noise = normal_draws(self.num_nodes * self.num_draws, x, self.seed)
        noise = noise.unflatten(0, (self.num_nodes, self.num_draws))
        rule = bound_rule(path, t, self.num_nodes)
        time = torch.tensor(t, dtype=torch.float64)
        moment = (path.alpha(time).square() + path.variance(time)).item()
        components = standard_normal_log_density(x.double() / math.sqrt(moment))
        components = components - math.log(moment) / 2
        error = torch.full((len(x),), math.nan, dtype=torch.float64, device=x.device)
        variance = torch.zeros_like(error)
        size = max(1, rows_per_call(x) // (len(x) * self.num_draws))
        for e, *columns in zip(*(part.split(size) for part in (noise, *rule)), strict=True):
            nodes = BoundRule(*columns)
            draws = draw_residuals(model, x, nodes, e)
            components += node_terms(x, nodes, draws).sum(0)
            if self.num_draws > 2:
                rest = [node_terms(x, nodes, draws.without(k)) for k in range(self.num_draws)]
                without = torch.stack([term.flatten(2).sum(2) for term in rest])
                variance += jackknife_variance(without).sum(0)
        error = variance.sqrt() if self.num_draws > 2 else error
        nfe = self.num_draws * sum(model.score_cost(time) for time in rule.times.tolist())
        return LogDensityEstimate(sum_except_batch(components), error, components, nfe)


def draw_residuals(model: SteinScore, x: Tensor, nodes: BoundRule, e: Tensor) -> Residuals:
    """Return the residuals of the noise ``e`` (n, K, B, *) at the nodes, for points x (B, *)."""
    a, deviation = expand_like(nodes.a, e), expand_like(nodes.deviation, e)
    points, times = (a * x + deviation * e).flatten(0, 1), nodes.times
    times = times.repeat_interleave(e.shape[1])
    if isinstance(model, MomentsDensity):
        score, variance = evaluate_in_chunks(model.score_and_variance, points, times)
        share = expand_like(nodes.deviation.square() / nodes.variances, e.double())
        variance = 1 - share + share * variance.double().view(e.shape)
    else:
        (score,) = evaluate_in_chunks(lambda x, t: (model.score(x, t),), points, times)
        variance = None
    residual = e + deviation * score.view(e.shape)
    return Residuals(e.double(), residual.double(), variance)


def node_terms(x: Tensor, nodes: BoundRule, draws: Residuals) -> Tensor:
    """Return the contribution of each node to the bound, per dimension, from an estimate of
    E[|e - e_ref|^2 - |e - e_s|^2]: (n, B, *) float64."""
    x = x.double()
    a, deviation, moments, weights = (
        expand_like(column, x[None])
        for column in (nodes.a, nodes.deviation, nodes.moments, nodes.weights)
    )
    shrink = deviation / moments
    # guess of the residual: slope * e - offset
    reference = 1 - deviation * shrink, shrink * a * x
    slope, offset = (part[:, None] for part in reference)
    others = draws.e.shape[1] - 1
    if others and draws.variance is not None:
        parts = draws.variance, draws.variance * draws.e - draws.residual
        slope, offset = ((part.sum(1, keepdim=True) - part) / others for part in parts)
    centred = (slope * draws.e - offset).square() - slope.square() - offset.square()
    mean = (draws.residual.square() - centred).mean(1)
    return weights / 2 * (reference[0].square() + reference[1].square() - mean)


def jackknife_variance(without: Tensor) -> Tensor:
    """Return the variance (*) of an estimate from K draws, given the estimates without each of
    them (K, *).

    The spread of the draws would understate it, since each draw contributes to the guess of the
    others. The jackknife overestimates it (Efron and Stein 1981,
    https://doi.org/10.1214/aos/1176345462).
    """
    draws = len(without)
    return (draws - 1) / draws * (without - without.mean(0)).square().sum(0)
