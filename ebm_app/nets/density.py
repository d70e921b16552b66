r"""Densities p_t from a time score: log p_t(x) = log N(x; 0, I) + integral_0^t d/ds log p_s(x) ds.

For fixed x, the integral is one-dimensional. It is computed by a Gauss-Legendre rule in the arc
length of the path, in which the integrand has unit scale. All values are in nats.
"""

from copy import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ebm_app.config import Margin
from ebm_app.nets.grey_levels import level_log_prob
from ebm_app.nets.protocols import PROVIDERS, LogDensityEstimate, Time
from ebm_app.nets.time_score import ModelOutput
from ebm_app.paths import require_one_sided
from ebm_app.paths.base import arc_length_rule
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Nodes, NonNegative, check_argument
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


def expand_time(t: Time, x: Tensor) -> Tensor:
    """Expand a time to (B,) float64, for points ``x`` (B, *) and on their device."""
    if isinstance(t, Tensor):
        return t.to(x.device, torch.float64).expand(len(x))
    return torch.full((len(x),), t, dtype=torch.float64, device=x.device)


class PathDensity:
    """Marginals p_t of a path, modelled by a network.

    Args:
        model: network with a ``path`` and an ``interval`` of times.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.path = model, model.path
        self.start, self.end = model.interval
        self.labels: Tensor | None = None
        self.guidance = 1.0

    def at(self, rows: Tensor) -> Self:
        """Return the density for the points with indices ``rows`` (b,) in a batch of n blocks of
        B points, with the labels of these points."""
        if self.labels is None:
            return self
        other = copy(self)
        other.labels = self.labels[rows.to(self.labels.device) % len(self.labels)]
        return other

    def with_eps(self, eps: float) -> Self:
        """Return a copy with another margin at t = 1. With a smaller margin than in training, the
        network is evaluated at times that it was not trained on.

        Raises:
            UserError: for a margin out of range.
        """
        other = copy(self)
        other.start, other.end = self.path.interval(check_argument(Margin, "eps", eps))
        return other

    def conditioned_on(self, labels: Tensor, guidance: float = 1.0) -> Self:
        r"""Return the density p_t(x | y) for class labels y (B,), guided by g = ``guidance``:

            (1 - g) log p_t(x) + g log p_t(x | y),

        up to a constant. Both scores are its derivatives. For g > 1, the densities are not the
        marginals of a diffusion.

        Raises:
            UserError: for guidance below 0.

        Source: Ho and Salimans 2022, arXiv:2207.12598.
        """
        other = copy(self)
        guidance = check_argument(NonNegative, "guidance", guidance)
        other.labels, other.guidance = labels, guidance
        return other


class TimeScoreDensity(PathDensity):
    """Density of a time score network. The log density is the time integral, and the Stein score
    is the gradient of this integral.

    Args:
        model: ``TimeScoreModel`` that predicts d/dt log p_t(x) on [t0, t1].
        num_nodes: quadrature nodes for the whole interval, at least 3. An interval with a share s
            of the arc length uses n + s (num_nodes - n) nodes with n = ``MIN_NODES``. On Gaussian
            data it is then as accurate as the whole interval; with s num_nodes nodes it is not.

    >>> from ebm_app import EBM
    >>> density = EBM.from_pretrained("digits").density
    >>> density.log_density(torch.zeros(2, 1, 8, 8), density.end).shape
    torch.Size([2])
    """

    #: Network passes per call of ``time_score``
    passes: ClassVar[int] = 1

    def __init__(self, model: Any, num_nodes: int = 32) -> None:
        super().__init__(model)
        self.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)

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
            return self.model(x, times)
        num = len(self.labels)
        if len(x) % num or len(x) < num:
            raise UserError(f"Expected a point for each of {num} labels, got {len(x)} points.")
        labels = self.labels.to(x.device).repeat(len(x) // num)
        conditional = self.model(x, times, labels=labels)
        if self.guidance == 1 or not self.model.uses_labels(times):
            return conditional
        free = self.model(x, times)
        mixed = [  # a model may have no Stein score
            None if end is None else torch.lerp(start, end, self.guidance)
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
        """Return log p_t1(x) - log p_t0(x) for x (B, *), by quadrature."""
        rule = self._rule(t0, t1)
        rate = self._at_nodes(lambda x, t: (self.time_score_terms(x, t),), x, rule)
        weights = (copy_to(w, x.device) for w in (rule.weights, rule.coarse_weights))
        terms, coarse = (torch.tensordot(w, rate, dims=1) for w in weights)
        value = sum_except_batch(terms)
        error = (value - sum_except_batch(coarse)).abs()
        components = terms if terms.shape == x.shape else None
        return LogDensityEstimate(value, error, components, self.passes * len(rule.nodes))

    def log_density(self, x: Tensor, t: float) -> Tensor:
        """Return log p_t(x) in nats: (B, *) -> (B,) float64. Gradients are computed if ``x``
        requires them. The density is normalised if the time score is exact.

        Raises:
            UserError: on a two-sided path, whose reference density is unknown.
        """
        reference = sum_except_batch(require_one_sided(self.path).reference_log_density(x))
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return reference + self.log_ratio(x, self.start, t).value

    def log_density_gradient(self, x: Tensor, t: float) -> Tensor:
        """Return the gradient (B, *) of ``log_density`` (paper, section 6), one chunk of nodes at
        a time. It is differentiable if ``x`` requires a gradient.

        Raises:
            UserError: on a two-sided path.
        """
        require_one_sided(self.path)
        is_outer, rule = torch.is_grad_enabled() and x.requires_grad, self._rule(self.start, t)

        def slope(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
            with leaves(x) as (point,):
                rate = self.time_score(point, t).sum()
                return torch.autograd.grad(rate, point, create_graph=is_outer)

        slopes = self._at_nodes(slope, x, rule)
        return torch.tensordot(rule.weights.to(slopes), slopes, dims=1) - x

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *)."""
        times, counts = torch.unique_consecutive(expand_time(t, x), return_counts=True)
        groups = zip(x.split(counts.tolist()), times.tolist(), strict=True)
        return torch.cat([self.log_density_gradient(group, time) for group, time in groups])

    def score_cost(self, t: float) -> int:
        """Return the number of network passes per call of ``score``: a forward and a backward pass
        per node."""
        return 2 * len(self._rule(self.start, t).nodes)

    def _at_nodes(self, function: ChunkFunction, x: Tensor, rule: Rule) -> Tensor:
        """Evaluate a function of (x, t) for x (B, *) at the n nodes of a rule: (n, B, *)."""
        points = x.expand(len(rule.nodes), *x.shape)
        return evaluate_in_chunks(function, points, rule.nodes)[0]

    def _rule(self, t0: float, t1: float) -> Rule:
        counts = (self.num_nodes, min(MIN_NODES, self.num_nodes))
        return arc_length_rule(self.path, (self.start, self.end), (t0, t1), *counts)


class SteinHeadDensity(TimeScoreDensity):
    """Density of a network with a Stein head: ``output`` has both scores.

    >>> from ebm_app import EBM
    >>> EBM.from_pretrained("digits").density.output(torch.zeros(2, 1, 8, 8), 0.5).score.shape
    torch.Size([2, 1, 8, 8])
    """

    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x) from the Stein head: (B, *)."""
        return self.output(x, t).score

    def score_cost(self, t: float) -> int:
        """Return the number of network passes per call of ``score``."""
        return self.passes


PROVIDERS[SteinHeadDensity] = (
    "a time score and a Stein score from one network",
    "models trained with a Stein head, and energy networks",
)


class MomentsDensity(SteinHeadDensity):
    """Density of a network that predicts posterior moments, see ``parametrisation``."""

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
        return level_log_prob(levels, mean, variance, self.model.num_levels)


def density_of(model: Any, num_nodes: int = 32) -> TimeScoreDensity:
    """Build the density of a ``TimeScoreModel``, with a type that depends on its prediction.

    Raises:
        UserError: for a number of nodes out of range.
    """
    if not model.stein_channels:
        return TimeScoreDensity(model, num_nodes)
    kind = MomentsDensity if model.predicts_variance else SteinHeadDensity
    return kind(model, num_nodes)
