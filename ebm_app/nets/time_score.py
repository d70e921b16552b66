r"""Models of the time score, and what follows from it: log densities and Stein scores.

For fixed x, log p_t(x) = log N(x; 0, I) + integral_0^t d/ds log p_s(x) ds is a one-dimensional
integral. It is computed by a Gauss-Legendre rule in the arc length of the path, in which the
integrand has unit scale. All values are in nats.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ebm_app.nets.grey_levels import level_log_prob
from ebm_app.nets.path_model import PathModel, expand_time
from ebm_app.nets.protocols import PROVIDERS, LogDensityEstimate, Time
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.paths.base import arc_length_rule
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Nodes, check_argument
from ebm_app.utils.quadrature import Rule
from ebm_app.utils.tensors import (
    ChunkFunction,
    copy_to,
    evaluate_in_chunks,
    expand_like,
    leaves,
    sum_except_batch,
)

#: Min quadrature nodes of any interval
MIN_NODES = 8


class ModelOutput(NamedTuple):
    """Output of a network at B points.

    Attributes:
        components: terms of the time score, in nats per unit of t: (B, *) per dimension, or (B, 1)
            if the network only predicts their sum.
        score: Stein score (B, *), or None without a Stein head.
        variance: posterior variance (B, *) of the target of the Stein head, or None if it is not
            predicted.
    """

    components: Tensor
    score: Tensor | None
    variance: Tensor | None = None


class TimeScoreModel(PathModel, ABC):
    """Model of the time score d/dt log p_t(x). The log density is its integral, and the Stein
    score is the gradient of this integral. Subclasses define ``forward``.

    Args:
        path: path.
        t_margin: margin of the interval of times, as in ``GaussianPath.interval``.
        num_nodes: quadrature nodes for the whole interval, at least 3. An interval with a fraction
            s of the arc length uses n + s (num_nodes - n) nodes with n = ``MIN_NODES``. On
            Gaussian data it is then as accurate as the whole interval; with s num_nodes nodes it
            is not.

    >>> from ebm_app import EBM
    >>> model = EBM.from_pretrained("digits").model
    >>> model.log_density(torch.zeros(2, 1, 8, 8), model.end).shape
    torch.Size([2])
    """

    #: Network evaluations of a forward pass of the model
    passes: ClassVar[int] = 1

    def __init__(self, path: GaussianPath, t_margin: float, num_nodes: int = 32) -> None:
        super().__init__(path, path.interval(t_margin))
        self.t_margin = t_margin
        self.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)

    @abstractmethod
    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, labels: Tensor | None = None
    ) -> ModelOutput:
        """Evaluate the network.

        Args:
            x: (B, *). t: (B,) float64.
            condition: augmentation parameters (B, condition_dim), zero if None.
            labels: class labels (B,) int64, for a class-conditional network.
        """

    def with_nodes(self, num_nodes: int) -> Self:
        """Return a copy with another number of quadrature nodes."""
        other = copy(self)
        other.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)
        return other

    def output(self, x: Tensor, t: Time) -> ModelOutput:
        """Return the output of the network at ``x`` (n B, *), for n repetitions of the B labels,
        if any.

        Raises:
            UserError: if the number of points is not a multiple of the number of labels.
        """
        times = expand_time(t, x)
        if self.labels is None:
            return self(x, times)
        num = len(self.labels)
        if len(x) % num or len(x) < num:
            raise UserError(f"Expected a point for each of {num} labels, got {len(x)} points.")
        labels = self.labels.to(x.device).repeat(len(x) // num)
        conditional = self(x, times, labels=labels)
        if self.guidance_scale == 1:
            return conditional
        free = self(x, times)
        mixed = [  # a model may have no Stein score
            None if end is None else torch.lerp(start, end, self.guidance_scale)
            for start, end in zip(free[:2], conditional[:2], strict=True)
        ]
        return ModelOutput(*mixed, conditional.variance)

    def time_score(self, x: Tensor, t: Time) -> Tensor:
        """Return d/dt log p_t(x) in nats per unit of t: (B,) float64."""
        return sum_except_batch(self.time_score_terms(x, t))

    def time_score_terms(self, x: Tensor, t: Time) -> Tensor:
        """Return the terms of the time score, (B, *) float64, see ``protocols.TimeScore``."""
        return self.output(x, t).components.double()

    def log_ratio(self, x: Tensor, t0: float, t1: float) -> LogDensityEstimate:
        """Return log p_t1(x) - log p_t0(x) of B points x (B, *), by quadrature."""
        rule = self._rule(t0, t1)
        rate = self._at_nodes(lambda x, t: (self.time_score_terms(x, t),), x, rule)
        weights = (copy_to(w, x.device) for w in (rule.weights, rule.coarse_weights))
        terms, coarse = (torch.tensordot(w, rate, dims=1) for w in weights)
        value = sum_except_batch(terms)
        error = (value - sum_except_batch(coarse)).abs()
        components = terms if terms.shape == x.shape else None
        return LogDensityEstimate(value, error, components, self._cost(len(rule.nodes)))

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """Return log p_t(x) in nats: (B, *) -> (B,) float64. Gradients are computed if ``x``
        requires them. The density is normalised if the time score is exact.

        Raises:
            UserError: on a two-sided path, whose reference density is unknown.
        """
        reference = sum_except_batch(require_one_sided(self.path).reference_log_density(x))
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return reference + self._by_time(TimeScoreModel._log_ratio_to, x, t)

    def log_density_gradient(self, x: Tensor, t: Time) -> Tensor:
        """Return the gradient (B, *) of ``log_density`` (paper, section 6), one chunk of nodes at
        a time. It is differentiable if ``x`` requires a gradient.

        Raises:
            UserError: on a two-sided path.
        """
        require_one_sided(self.path)
        return self._by_time(TimeScoreModel._log_density_gradient_at, x, t)

    def _log_ratio_to(self, x: Tensor, t: float) -> Tensor:
        return self.log_ratio(x, self.start, t).value

    def _log_density_gradient_at(self, x: Tensor, t: float) -> Tensor:
        is_outer, rule = torch.is_grad_enabled() and x.requires_grad, self._rule(self.start, t)

        def slope(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
            with leaves(x) as (point,):
                rate = self.time_score(point, t).sum()
                return torch.autograd.grad(rate, point, create_graph=is_outer)

        slopes = self._at_nodes(slope, x, rule)
        return torch.tensordot(rule.weights.to(slopes), slopes, dims=1) - x

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *)."""
        return self.log_density_gradient(x, t)

    def _by_time(
        self, function: Callable[[Self, Tensor, float], Tensor], x: Tensor, t: Time
    ) -> Tensor:
        """Evaluate a function of (model, x, t) for the points of each distinct time, with their
        labels: (B, *) and a time or (B,) -> (B, ...)."""
        times, index = expand_time(t, x).unique(return_inverse=True)
        if len(times) == 1:
            return function(self, x, times.item())
        groups = [(index == number).nonzero()[:, 0] for number in range(len(times))]
        values = [
            function(self.at(rows), x[rows], time)
            for rows, time in zip(groups, times.tolist(), strict=True)
        ]
        return torch.cat(values)[torch.cat(groups).argsort()]

    def _cost(self, num_times: int) -> int:
        """Return the network evaluations of a call of ``output`` at each of some times, which
        guidance doubles."""
        is_guided = self.labels is not None and self.guidance_scale != 1
        return (2 if is_guided else 1) * self.passes * num_times

    def log_density_cost(self, t: float) -> int:
        """Return the network evaluations of a call of ``log_density``: one per node, and two with
        guidance."""
        return self._cost(len(self._rule(self.start, t).nodes))

    def gradient_cost(self, t: float) -> int:
        """Return the network evaluations of a call of ``log_density_gradient``: a forward and a
        backward pass per node."""
        return 2 * self.log_density_cost(t)

    def score_cost(self, t: float) -> int:
        """Return the network evaluations of a call of ``score``."""
        return self.gradient_cost(t)

    def _at_nodes(self, function: ChunkFunction, x: Tensor, rule: Rule) -> Tensor:
        """Evaluate a function of (x, t) for x (B, *) at the n nodes of a rule: (n, B, *)."""
        points = x.expand(len(rule.nodes), *x.shape)
        return evaluate_in_chunks(function, points, rule.nodes)[0]

    def _rule(self, t0: float, t1: float) -> Rule:
        counts = (self.num_nodes, min(MIN_NODES, self.num_nodes))
        return arc_length_rule(self.path, (self.start, self.end), (t0, t1), *counts)


class SteinScoreModel(TimeScoreModel):
    """Model of both scores: ``output`` has a Stein score, from a Stein head or an energy.

    >>> from ebm_app import EBM
    >>> EBM.from_pretrained("digits").model.output(torch.zeros(2, 1, 8, 8), 0.5).score.shape
    torch.Size([2, 1, 8, 8])
    """

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *)."""
        return self.output(x, t).score

    def score_cost(self, t: float) -> int:
        """Return the network evaluations of a call of ``score``, two with guidance."""
        return self._cost(1)


PROVIDERS[SteinScoreModel] = (
    "a time score and a Stein score from one network",
    "models trained with a Stein head, and energy networks",
)


class MomentsModel(SteinScoreModel):
    """Model of the posterior moments, see ``parametrisation``: ``output`` has a variance.

    Attributes:
        num_levels: number of grey levels of the data.
    """

    num_levels: int

    def score_and_variance(self, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        """Return grad_x log p_t(x) and Var[eps | x_t = x] per dimension: (B, *) each."""
        output = self.output(x, t)
        gain = self.path.noise_variance_gain(torch.as_tensor(t, dtype=torch.float64))
        return output.score, expand_like(gain, x) * output.variance

    def level_log_prob(self, levels: Tensor, x: Tensor, t: float) -> Tensor:
        """Return log P(levels | x_t = x) in nats per dimension, (B, *) float64, by the Gaussian
        with the predicted posterior moments, restricted to the grey levels."""
        time, path = torch.tensor(t, dtype=torch.float64), self.path
        score, variance = self.score_and_variance(x, t)
        # x1 = (x - sqrt(v) eps) / alpha
        variance = path.variance(time) / path.alpha(time).square() * variance.double()
        mean = path.denoise(x, score, time).double()
        return level_log_prob(levels, mean, variance, self.num_levels)
