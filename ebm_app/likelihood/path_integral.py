r"""log p_t(x) as a line integral of time score and Stein score.

log p is a potential in (x, t): along any curve x_s that ends in x_t = x,

    log p_t(x) = log N(x_0; 0, I) + int_0^t [d/ds log p_s(x_s) + grad log p_s(x_s) . dx_s/ds] ds.

For an exact model every curve gives the same value. The curves used here pass through points
distributed like the training points.
"""

import math
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import Estimator, error_over_draws
from ebm_app.nets.model import LogDensityEstimate, TimeScoreModel
from ebm_app.paths import OneSidedPath, require_one_sided
from ebm_app.utils.fields import Draws, Nodes, configuration
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.random import ImageNoise
from ebm_app.utils.tensors import copy_to, evaluate_in_chunks, expand_like


class CurveRule(NamedTuple):
    """Quadrature rule along the curve x_s = a x + deviation e.

    Attributes:
        times, a, deviation, a_dt, deviation_dt: the nodes s, the coefficients there and their
            derivatives with respect to s, (n,) float64 each.
        weights, coarse_weights: weights of the rule in s, and of one with half the nodes.
        start_a, start_deviation: coefficients at the start of the curve.
    """

    times: Tensor
    a: Tensor
    deviation: Tensor
    a_dt: Tensor
    deviation_dt: Tensor
    weights: Tensor
    coarse_weights: Tensor
    start_a: float
    start_deviation: float


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # cached tensors may be differentiated later
def curve_rule(path: OneSidedPath, start: float, t: float, num_nodes: int) -> CurveRule:
    """Return Gauss-Legendre nodes along the diffusion from x_t back to noise: a = alpha_s /
    alpha_t and deviation^2 = v_s - a^2 v_t.

    Near t, the deviation grows like the square root of the arc length d between s and t. The
    nodes are those of u, with d = sqrt(1 + u^2) - 1, because the deviation is smooth in u.
    """
    time = torch.tensor(t, dtype=torch.float64)
    alpha_t, variance_t = path.alpha(time), path.variance(time)
    first, last = path.arc_length(torch.tensor([start, t], dtype=torch.float64)).tolist()
    rule = rule_on(num_nodes, 0.0, math.sqrt((1 + last - first) ** 2 - 1))
    root = (1 + rule.nodes.square()).sqrt()
    times = path.arc_length_inverse(last - (root - 1))
    ds = path.time_score_variance(times).rsqrt() * rule.nodes / root

    def coefficients(times: Tensor) -> tuple[Tensor, Tensor]:
        a = path.alpha(times) / alpha_t
        return a, (path.variance(times) - a.square() * variance_t).sqrt()

    a, deviation = coefficients(times)
    a_dt = path.alpha_dt(times) / alpha_t
    deviation_dt = (path.variance_dt(times) / 2 - a * a_dt * variance_t) / deviation
    weights = (rule.weights * ds, rule.coarse_weights * ds)
    start_a, start_deviation = coefficients(torch.tensor(start, dtype=torch.float64))
    ends = (start_a.item(), start_deviation.item())
    return CurveRule(times, a, deviation, a_dt, deviation_dt, *weights, *ends)


@configuration
class PathIntegral(Estimator):
    """Line integral along x_s = a x + deviation e, the diffusion from x back to noise with one
    frozen e ~ N(0, I) per curve. Its points are distributed like the training points, and it needs
    no derivative of the network.

    Args:
        num_nodes: quadrature nodes.
        num_draws: draws of e, whose integrals are averaged. Their spread measures how far the
            model is from an exact potential.

    ``error`` combines the standard error over the draws and the quadrature error; it is NaN for a
    single draw.
    """

    num_nodes: Nodes = 32
    num_draws: Draws = 2

    needs: ClassVar[str] = "both scores of a network"
    error_is_drawn: ClassVar[bool] = True
    is_normalised: ClassVar[bool] = False

    @torch.no_grad()
    def __call__(
        self, model: TimeScoreModel, x: Tensor, t: float, noise: ImageNoise
    ) -> LogDensityEstimate:
        path = require_one_sided(model.path)
        rule = curve_rule(path, model.start, t, self.num_nodes)
        draws = [self._integrate(model, x, e, rule) for e in noise.normal_draws(self.num_draws, x)]
        components, coarse = (torch.stack(column) for column in zip(*draws, strict=True))
        values, coarse = components.flatten(2).sum(2), coarse.flatten(2).sum(2)
        error = torch.hypot(error_over_draws(values), (values - coarse).mean(0))
        mean = components.mean(0) if components.shape[2:] == x.shape[1:] else None
        nfe = self.num_draws * len(rule.times) * model.passes
        return LogDensityEstimate(values.mean(0), error, mean, nfe)

    @staticmethod
    def _integrate(
        model: TimeScoreModel, x: Tensor, e: Tensor, rule: CurveRule
    ) -> tuple[Tensor, Tensor]:
        """Return the terms of the log density along the curve of ``e``, by the rule and by half of
        its nodes: (B, *) each, or (B, 1) if the model only has their sum."""
        points, velocity = (
            expand_like(a, x[None]) * x + expand_like(deviation, x[None]) * e
            for a, deviation in ((rule.a, rule.deviation), (rule.a_dt, rule.deviation_dt))
        )

        def scores(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            output = model.output(x, t)
            return output.components.double(), output.score.double()

        rate, score = evaluate_in_chunks(scores, points, rule.times)
        work = score * velocity.double()
        start = rule.start_a * x + rule.start_deviation * e
        reference = model.path.reference_log_density(start)[None]
        if rate.shape != work.shape:
            rate, work, reference = (
                term.flatten(2).sum(2, keepdim=True) for term in (rate, work, reference)
            )
        weights = (copy_to(w, x.device) for w in (rule.weights, rule.coarse_weights))
        fine, coarse = (reference[0] + torch.tensordot(w, rate + work, dims=1) for w in weights)
        return fine, coarse
