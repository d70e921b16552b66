r"""Estimators of a log density ratio log p_1/p_0, in nats, that are trained on draws of both."""

from abc import ABC, abstractmethod
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


class TimeScoreRatio(RatioEstimator):
    r"""log p_1/p_0 = integral over t of the learned time score (arXiv:2502.02300, eq. 3).

    Args:
        model: of the time score.
        objective: what it is trained by.
        num_nodes: Gauss-Legendre nodes in t of ``log_ratio``. Nodes in t, not in the clock:
            the marginal's time score is regular at the ends where the conditional one is not.
    """

    def __init__(self, model: TimeScoreModel, objective: Objective, num_nodes: int = 24) -> None:
        super().__init__()
        self.model, self.objective, self.num_nodes = model, objective, num_nodes

    def loss(self, draw: EndPoints) -> Tensor:
        sample = draw.at(self.model.path, draw.times.t)
        return self.objective(self.model, self.model.path, sample, draw.times.weight)

    def time_scores(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x) at the points x (N, D) and one time t (): (N,), float64."""
        return self.model.time_score(x, t.to(x.device).expand(len(x))).double()

    @torch.no_grad()
    def log_ratio(self, x: Tensor) -> Tensor:
        rule = rule_on(self.num_nodes, *self.model.interval)
        return sum(
            weight.item() * self.time_scores(x, node)
            for node, weight in zip(rule.nodes, rule.weights, strict=True)
        )

    @torch.no_grad()
    def accurate_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        """By SciPy's RK45 at 1e-6, the paper's protocol."""
        result = integrate(lambda t: self.time_scores(x, t), *self.model.interval, x[:, 0])
        return result.value, result.nfe


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


class RotatedRatio(RatioEstimator):
    """An estimator that sees all points as y = V^T x, V (D, D) orthogonal: the log ratio at x is
    that of the rotated densities at y."""

    def __init__(self, inner: RatioEstimator, axes: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("axes", axes)

    def loss(self, draw: EndPoints) -> Tensor:
        x0, x1, noise = (part @ self.axes for part in draw[:3])
        return self.inner.loss(EndPoints(x0, x1, noise, draw.times))

    def log_ratio(self, x: Tensor) -> Tensor:
        return self.inner.log_ratio(x @ self.axes)

    def accurate_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        return self.inner.accurate_log_ratio(x @ self.axes)
