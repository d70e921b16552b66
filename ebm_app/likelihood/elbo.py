"""log p_t(x) of the reversed diffusion, bounded from below."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.likelihood.estimator import CountedScore, Estimator, LogDensity
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics import standard_normal_log_density, sum_except_batch
from ebm_app.paths import OneSidedPath
from ebm_app.probability_flow.divergence import normal_draws
from ebm_app.quadrature import rule_on


class BoundNode(NamedTuple):
    """A node of ``VariationalBound``: its time r, x_r = a x + deviation e, its weight."""

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
    and l = log(a^2 / w). e_s = -sqrt(w) s(x_r, r) is the noise that the score predicts, and
    e_ref = sqrt(w) x_r / m_r the one that the score of N(0, m_r I) predicts, m = alpha^2 + v. An
    exact score attains the bound. It needs no derivative of the network, and averages over noisy
    points, like those that the network was trained on.

    Args:
        num_nodes: in l. num_draws: of the noise at every node.
        score: "head", "integral" or None, as for ``TimeScoreEnergy.stein_score``.
        start: time at which N(0, I) is taken for p_t; its alpha must exceed 0.
        tail: the integral stops where w is this share of v_t.
        seed: of the noise; that of an example does not depend on its batch.

    ``error`` is the standard error over the draws of the noise, unknown (NaN) for a single one.

    Sources: Song et al. 2021, arXiv:2101.09258, theorem 3, less the same bound for N(0, m_t I),
    a control variate: it is exact and removes most of the noise; Kingma et al. 2021,
    arXiv:2107.00630, for l.
    """

    num_nodes: int = 32
    num_draws: int = 2
    score: str | None = None
    start: float = 1e-4
    tail: float = 1e-5
    seed: int = 0

    note: ClassVar[str] = (
        "a lower bound on the log density of the model's own reversed diffusion, which is "
        "normalised; averaged over noisy copies of the image"
    )
    normalised: ClassVar[bool] = True

    def __call__(self, energy: TimeScoreEnergy, x: Tensor, t: float) -> LogDensity:
        if self.num_nodes < 3 or self.num_draws < 1:
            raise UserError(
                f"{self.num_nodes} nodes and {self.num_draws} draws make no bound: give at least "
                "3 and 1"
            )
        energy.path.check_reference()
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
