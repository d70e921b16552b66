r"""Estimators of a log density ratio log p_1/p_0, in nats, that are trained on draws of both."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ebm_app.models.time_score import TimeScoreModel
from ebm_app.numerics.quadrature import integrate, rule_on
from ebm_app.objectives.regression import Objective
from ebm_app.objectives.time_sampling import TimeSample
from ebm_app.paths import GaussianPath, PathSample


class EndPoints(NamedTuple):
    """Rows of one step: draws ``x0`` of p_0 and ``x1`` of p_1, standard normal ``noise`` (B, D),
    and times with their weights (B,)."""

    x0: Tensor
    x1: Tensor
    noise: Tensor
    times: TimeSample

    def at(self, path: GaussianPath, t: Tensor) -> PathSample:
        """The points of a path at times t (B,)."""
        return path.sample(self.x0, self.x1, t, self.noise)


class RatioEstimator(nn.Module, ABC):
    """An estimator of log p_1/p_0; its parameters are what is trained."""

    @abstractmethod
    def loss(self, draw: EndPoints) -> Tensor:
        """Loss by example, (B,)."""

    @abstractmethod
    def log_ratio(self, x: Tensor) -> Tensor:
        """log p_1/p_0 at the points x (N, D): (N,) float64, in nats."""

    def accurate_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        """The same as accurately as the estimator allows, and the evaluations of its network that
        a point took."""
        return self.log_ratio(x), 1

    def log_ratios_at(self, x: Tensor, times: Sequence[float]) -> Tensor:
        """log p_t/p_0 at increasing ``times`` in [0, 1] and the points x (N, D), in nats: (T, N),
        float64; NaN where it is not learned, of classifiers all but the ends."""
        end = self.log_ratio(x)
        by_time = {0.0: torch.zeros_like(end), 1.0: end}
        return torch.stack([by_time.get(t, torch.full_like(end, math.nan)) for t in times])


class TimeScoreRatio(RatioEstimator):
    r"""log p_1/p_0 = integral over t of the learned time score (arXiv:2502.02300, eq. 3).

    Args:
        model: of the time score.
        objective: what it is trained by.
        axes: orthogonal V (D, D); the model sees all points as V^T x. None for the points.
        num_nodes: Gauss-Legendre nodes in t of ``log_ratio``. Nodes in t, not in the clock:
            the marginal's time score is regular at the ends where the conditional one is not.
    """

    def __init__(
        self,
        model: TimeScoreModel,
        objective: Objective,
        axes: Tensor | None = None,
        num_nodes: int = 24,
    ) -> None:
        super().__init__()
        self.model, self.objective, self.num_nodes = model, objective, num_nodes
        self.register_buffer("axes", axes)

    def loss(self, draw: EndPoints) -> Tensor:
        x0, x1, noise = map(self._turned, draw[:3])
        path, t = self.model.path, draw.times.t
        sample = path.sample(x0, x1, t, noise)
        return self.objective(self.model, path, sample, draw.times.weight)

    def time_scores(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x) at the points x (N, D) and one time t (): (N,), float64."""
        return self.model.time_score(self._turned(x), t.to(x.device).expand(len(x))).double()

    @torch.no_grad()
    def log_ratio(self, x: Tensor) -> Tensor:
        return self._integral(x, *self.model.interval, self.num_nodes)

    @torch.no_grad()
    def accurate_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        """By SciPy's RK45 at 1e-6, the paper's protocol."""
        result = integrate(lambda t: self.time_scores(x, t), *self.model.interval, x[:, 0])
        return result.value, result.nfe

    @torch.no_grad()
    def log_ratios_at(self, x: Tensor, times: Sequence[float]) -> Tensor:
        """As of any estimator, by 6 nodes from each time to the next."""
        start, end = self.model.interval  # a margin at the ends of a path, as in the log ratio
        knots = [start, *(min(max(time, start), end) for time in times)]
        parts = [self._integral(x, low, high, 6) for low, high in pairwise(knots)]
        return torch.stack(parts).cumsum(0)

    def _integral(self, x: Tensor, start: float, end: float, num_nodes: int) -> Tensor:
        rule = rule_on(num_nodes, start, end)
        return sum(
            weight.item() * self.time_scores(x, node)
            for node, weight in zip(rule.nodes, rule.weights, strict=True)
        )

    def _turned(self, x: Tensor) -> Tensor:
        return x if self.axes is None else x @ self.axes


class TelescopingRatio(RatioEstimator):
    r"""Classifiers between successive p_{t_k} and p_{t_{k+1}} on a path, whose logits add up.

    The loss of a bridge k is the logistic one with equal priors,

        softplus(-f_k(x_{t_{k+1}})) + softplus(f_k(x_{t_k})),   f_k -> log p_{t_{k+1}} / p_{t_k}.

    One bridge is noise-contrastive estimation.

    Args:
        net: (x (B, D), t (B,)) -> one output for each bridge; its time input is not used.
        path: the path; with one bridge only its ends matter.
        num_bridges: K.

    Sources: Gutmann and Hyvarinen 2012 (NCE); Rhodes, Xu, Gutmann 2020, arXiv:2006.12204 (TRE).
    """

    def __init__(self, net: nn.Module, path: GaussianPath, num_bridges: int) -> None:
        super().__init__()
        self.net, self.path, self.num_bridges = net, path, num_bridges

    def loss(self, draw: EndPoints) -> Tensor:
        total = 0.0
        below = None
        for k in range(self.num_bridges + 1):
            t = torch.full_like(draw.times.t, k / self.num_bridges)
            logits = self._logits(draw.at(self.path, t).xt)
            if below is not None:
                total = total + functional.softplus(-logits[:, k - 1]) + below
            if k < self.num_bridges:
                below = functional.softplus(logits[:, k])
        return total / self.num_bridges

    @torch.no_grad()
    def log_ratio(self, x: Tensor) -> Tensor:
        return self._logits(x).double().sum(1)

    def _logits(self, x: Tensor) -> Tensor:
        return self.net(x, torch.zeros(len(x), dtype=x.dtype, device=x.device))
