r"""Estimators of a log density ratio that are trained side by side on draws of two densities.

Each is a stack of M members (see ``nets.stack``). A batch has M equal parts of rows, part m for
member m; so has a loss. Log ratios are in nats.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ebm_app.models.time_score import TimeScoreModel
from ebm_app.objectives.regression import Batch, Objective
from ebm_app.objectives.time_sampling import TimeSample
from ebm_app.paths import GaussianPath, PathSample
from ebm_app.quadrature import integrate_rk45, rule_on
from ebm_app.ratios.nets import Stack


class Draw(NamedTuple):
    """Rows of one step: draws ``x0`` of p_0 and ``x1`` of p_1, standard normal ``noise`` (B, D),
    and times with their weights (B,)."""

    x0: Tensor
    x1: Tensor
    noise: Tensor
    times: TimeSample


class RatioStack(nn.Module, ABC):
    """M estimators of log p_1/p_0."""

    @property
    @abstractmethod
    def stack(self) -> Stack:
        """The networks."""

    @abstractmethod
    def loss(self, draw: Draw) -> Tensor:
        """Loss by example, (M B,), of M equal parts of rows."""

    @abstractmethod
    def log_ratio(self, x: Tensor) -> Tensor:
        """log p_1/p_0 by every member at the points x (N, D): (M, N) float64, in nats."""

    def exact_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        """The same by the most careful means there are, and the evaluations of the network that
        it took for a point."""
        return self.log_ratio(x), 1


def point(path: GaussianPath, draw: Draw, t: Tensor) -> PathSample:
    """The points of a path at times t (B,), from the endpoints and the noise of a draw."""
    return path.sample(draw.x0, draw.x1, t, draw.noise)


class TimeScoreRatio(RatioStack):
    r"""log p_1/p_0 = integral over t of the learned time score (arXiv:2502.02300, eq. 3).

    Args:
        model: a model over a stack.
        objective: what it is trained by.
        num_nodes: Gauss-Legendre nodes in t of :meth:`log_ratio`. Nodes in t, not in the clock:
            the marginal's time score is regular at the ends where the conditional one is not.
    """

    def __init__(self, model: TimeScoreModel, objective: Objective, num_nodes: int = 24) -> None:
        super().__init__()
        self.model, self.objective, self.num_nodes = model, objective, num_nodes

    @property
    def stack(self) -> Stack:
        return self.model.net

    def loss(self, draw: Draw) -> Tensor:
        sample = point(self.model.path, draw, draw.times.t)
        return self.objective(self.model, self.model.path, Batch(sample, draw.times.weight))

    def time_scores(self, x: Tensor, t: Tensor) -> Tensor:
        """d/dt log p_t(x) by every member at the points x (N, D) and one time t (): (M, N)."""
        members = self.stack.num_members
        rows = x.repeat(members, 1)
        score = self.model.time_score(rows, t.to(x.device).expand(len(rows)))
        return score.double().unflatten(0, (members, -1))

    @torch.no_grad()
    def log_ratio(self, x: Tensor) -> Tensor:
        rule = rule_on(self.num_nodes, *self.model.interval)
        return sum(
            weight.item() * self.time_scores(x, node)
            for node, weight in zip(rule.nodes, rule.weights, strict=True)
        )

    @torch.no_grad()
    def exact_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        """By SciPy's RK45 at 1e-6, the paper's protocol; each member has its own solve."""
        values, nfe = [], 0
        for member in range(self.stack.num_members):
            result = integrate_rk45(
                lambda t, m=member: self.time_scores(x, t)[m], *self.model.interval, x[:, 0]
            )
            values.append(result.value)
            nfe = max(nfe, result.nfe)
        return torch.stack(values), nfe


class TelescopingRatio(RatioStack):
    r"""Classifiers between neighbours p_{t_k} and p_{t_{k+1}} on a path, whose logits add up.

    The loss of a bridge k is the logistic one with equal priors,

        softplus(-f_k(x_{t_{k+1}})) + softplus(f_k(x_{t_k})),   f_k -> log p_{t_{k+1}} / p_{t_k}.

    One bridge is noise-contrastive estimation.

    Args:
        net: a stack with one output for each bridge; its time input is not used.
        path: the path; with one bridge only its ends matter.
        num_bridges: K.

    Sources: Gutmann and Hyvarinen 2012 (NCE); Rhodes, Xu, Gutmann 2020, arXiv:2006.12204 (TRE).
    """

    def __init__(self, net: Stack, path: GaussianPath, num_bridges: int) -> None:
        super().__init__()
        self.net, self.path, self.num_bridges = net, path, num_bridges

    @property
    def stack(self) -> Stack:
        return self.net

    def loss(self, draw: Draw) -> Tensor:
        total = 0.0
        below = None
        for k in range(self.num_bridges + 1):
            t = torch.full_like(draw.times.t, k / self.num_bridges)
            logits = self._logits(point(self.path, draw, t).xt)
            if below is not None:
                total = total + functional.softplus(-logits[:, k - 1]) + below
            if k < self.num_bridges:
                below = functional.softplus(logits[:, k])
        return total / self.num_bridges

    @torch.no_grad()
    def log_ratio(self, x: Tensor) -> Tensor:
        members = self.stack.num_members
        logits = self._logits(x.repeat(members, 1)).double()
        return logits.sum(1).unflatten(0, (members, -1))

    def _logits(self, x: Tensor) -> Tensor:
        return self.stack(x, torch.zeros(len(x), dtype=x.dtype, device=x.device))


class RotatedRatio(RatioStack):
    """An estimator that sees all points as y = V^T x, V (D, D) orthogonal: the log ratio at x is
    that of the rotated densities at y."""

    def __init__(self, inner: RatioStack, axes: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("axes", axes)

    @property
    def stack(self) -> Stack:
        return self.inner.stack

    def loss(self, draw: Draw) -> Tensor:
        x0, x1, noise = (part @ self.axes for part in draw[:3])
        return self.inner.loss(Draw(x0, x1, noise, draw.times))

    def log_ratio(self, x: Tensor) -> Tensor:
        return self.inner.log_ratio(x @ self.axes)

    def exact_log_ratio(self, x: Tensor) -> tuple[Tensor, int]:
        return self.inner.exact_log_ratio(x @ self.axes)
