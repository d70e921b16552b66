r"""log p_t(x) as a line integral of time score and Stein score.

log p is a potential in (x, t): along any curve x_s that ends in x_t = x,

    log p_t(x) = log N(x_0; 0, I) + int_0^t [d/ds log p_s(x_s) + grad log p_s(x_s) . dx_s/ds] ds.

For an exact model every curve gives the same value; the curves here pass through points like those
of the training.
"""

import math
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.energy import LogDensity, TimeScoreEnergy
from ebm_app.paths import OneSidedPath
from ebm_app.paths.divergence import normal_draws
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Draws, Nodes, Seed, configuration
from ebm_app.utils.quadrature import rule_on


class NoisedNode(NamedTuple):
    """x_s = a x + deviation e at a time, the derivatives of a and of the deviation by s, and the
    weights in s of the rule and of one by half the nodes."""

    time: float
    a: float
    deviation: float
    a_dt: float
    deviation_dt: float
    weight: float
    coarse_weight: float


class NoisedRule(NamedTuple):
    """The nodes, and the a and deviation of x_0 = a x + deviation e where the curve begins."""

    nodes: tuple[NoisedNode, ...]
    a: float
    deviation: float


@lru_cache(maxsize=64)
def noised_rule(path: OneSidedPath, start: float, t: float, num_nodes: int) -> NoisedRule:
    """Gauss-Legendre nodes of the diffusion from x_t back: a = alpha_s / alpha_t and
    deviation^2 = v_s - a^2 v_t.

    The deviation begins like the square root of the clock's distance from t. The nodes lie in u,
    distance = sqrt(1 + u^2) - 1, in which it is smooth.
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
    columns = (times, a, deviation, a_dt, deviation_dt)
    weights = (rule.weights * ds, rule.coarse_weights * ds)
    nodes = tuple(NoisedNode(*row) for row in torch.stack([*columns, *weights], 1).tolist())
    ends = coefficients(torch.tensor(start, dtype=torch.float64))
    return NoisedRule(nodes, *(end.item() for end in ends))


@configuration
class NoisedIntegral(Estimator):
    """The line integral along x_s = a x + deviation e, the diffusion from x back to noise with one
    frozen e ~ N(0, I) for the whole curve. Its points are distributed like the training points,
    and it needs no derivative of the network.

    Args:
        num_nodes: of the rule. num_draws: of e, whose integrals are averaged; they differ as far
            as the model is no exact potential.
        seed: of e; that of an example does not depend on its batch.

    ``error`` holds the standard error over the draws and the error of the rule; it is unknown
    (NaN) for a single draw.
    """

    num_nodes: Nodes = 32
    num_draws: Draws = 2
    seed: Seed = 0

    note: ClassVar[str] = (
        "the line integral of time score and Stein score along noisy copies of the image; "
        "normalised only as far as both are exact"
    )
    normalised: ClassVar[bool] = False
    reads_time_score: ClassVar[bool] = True

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        energy.path.check_reference()
        if not energy.has_head:
            raise UserError(
                "this model has no Stein head: take the integral at a fixed point, ratio"
            )
        rule = noised_rule(energy.path, energy.start, t, self.num_nodes)
        draws = [self._one(energy, x, e, rule) for e in normal_draws(self.num_draws, x, self.seed)]
        parts, coarse = (torch.stack(part) for part in zip(*draws, strict=True))
        values = parts.flatten(2).sum(2)
        error = torch.full_like(values[0], math.nan)
        if self.num_draws > 1:
            spread = values.std(0, unbiased=True) / math.sqrt(self.num_draws)
            error = torch.hypot(spread, (values - coarse.flatten(2).sum(2)).mean(0))
        nfe = self.num_draws * self.num_nodes
        return LogDensity(values.mean(0), error, parts.mean(0), nfe)

    @staticmethod
    @torch.no_grad()
    def _one(
        energy: TimeScoreEnergy, x: Tensor, e: Tensor, rule: NoisedRule
    ) -> tuple[Tensor, Tensor]:
        """The parts (B, *) of the log density along the curve of ``e``, by the rule and by half
        of it."""
        reference = energy.path.reference_log_density(rule.a * x + rule.deviation * e)
        fine, coarse = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for node in rule.nodes:
            output = energy.output(node.a * x + node.deviation * e, node.time)
            velocity = node.a_dt * x + node.deviation_dt * e
            rate = output.parts() + output.score.double() * velocity.double()
            fine, coarse = fine + node.weight * rate, coarse + node.coarse_weight * rate
        return reference + fine, reference + coarse
