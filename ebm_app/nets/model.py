r"""Models of the marginals p_t of a path, and what follows from their time score.

``TimeScoreModel`` is a network that predicts the time score d/dt log p_t(x) of a path. For fixed
x, the log density is its integral,

    log p_t(x) = log N(x; 0, I) + integral_0^t d/ds log p_s(x) ds,

computed by a Gauss-Legendre rule in the arc length of the path, in which the integrand has unit
scale. The Stein score is the output of a Stein head or, without one, the gradient of this
integral (paper, section 6). ``ScoreModel`` is the base of all models with a Stein score.

All values are in nats; ``x`` has shape (B, *), and ``t`` is one time for all points or a float64
tensor (B,). A model never changes: ``conditioned_on``, ``with_t_margin`` and ``with_nodes`` return
copies that share the weights.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ebm_app.config import Margin
from ebm_app.nets.grey_levels import level_log_prob
from ebm_app.nets.prediction import PREDICTIONS
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.paths.base import arc_length_rule
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Nodes, NonNegative, Probability, check_argument
from ebm_app.utils.quadrature import Rule
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import (
    ChunkFunction,
    as_tensor,
    copy_to,
    evaluate_in_chunks,
    expand_like,
    leaves,
    sum_except_batch,
)

Time = float | Tensor
#: Min quadrature nodes of any interval
MIN_NODES = 8


class LogDensityEstimate(NamedTuple):
    """Estimate of log p_t(x), or its difference between two times, for B points.

    Attributes:
        value: (B,) float64, in nats.
        error: (B,), estimate of the numerical error, in nats; NaN if unknown.
        components: (B, *), per-dimension terms that sum to ``value``, or None.
        nfe: network evaluations per point: forward and backward passes. A backward pass with
            respect to the input costs about as much as a forward pass.
    """

    value: Tensor
    error: Tensor
    components: Tensor | None
    nfe: int


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


def arc_length_fraction(path: GaussianPath, interval: tuple[float, float], t: Tensor) -> Tensor:
    """Return (tau(t) - tau(t0)) / (tau(t1) - tau(t0)), where tau is the arc length of the path."""
    # on the device of t, because torch.tensor would wait for a GPU
    start, end = (path.arc_length(torch.full_like(t[:1], time)) for time in interval)
    return (path.arc_length(t) - start) / (end - start)


#: Name -> (path, interval of the model, t (B,)) -> time input (B,) of the network, in [0, 1]
TIME_INPUTS: dict[str, Callable[[GaussianPath, tuple[float, float], Tensor], Tensor]] = {
    "time": lambda path, interval, t: t,
    "arc_length": arc_length_fraction,
}


def expand_time(t: Time, x: Tensor) -> Tensor:
    """Expand a time to (B,) float64, for points ``x`` (B, *) and on their device."""
    if isinstance(t, Tensor):
        return t.to(x.device, torch.float64).expand(len(x))
    return torch.full((len(x),), t, dtype=torch.float64, device=x.device)


def checked_time(t: Time, num: int, end: float) -> Time:
    """Return a time, clamped to ``end``: a number, or a tensor (num,) float64 of one per point.

    >>> checked_time(1, 3, end=0.999), checked_time(torch.tensor([0.5, 1.0]), 2, end=0.999)
    (0.999, tensor([0.5000, 0.9990], dtype=torch.float64))

    Raises:
        UserError: for times outside [0, 1], or another number of times.
    """
    times = as_tensor(t, "t")
    if not times.ndim:
        return min(check_argument(Probability, "t", times.item()), end)
    if times.shape != (num,):
        raise UserError(f"Expected one time t, or {num}, got shape {tuple(times.shape)}.")
    for time in times.tolist():
        check_argument(Probability, "t", time)
    return times.double().clamp(max=end)


class ScoreModel(nn.Module, ABC):
    """Model of the Stein score of the marginals p_t of a path, for ``start`` <= t <= ``end``.

    Args:
        path: path.
        interval: first and last time that the network is trained on.

    Attributes:
        start, end: first and last time of an evaluation; those of ``interval``, unless changed by
            ``with_t_margin``.
        labels: class labels (B,) of the points, or None.
        guidance_scale: guidance scale of the labels.
    """

    def __init__(self, path: GaussianPath, interval: tuple[float, float]) -> None:
        super().__init__()
        self.path, self.interval = path, interval
        self.start, self.end = interval
        self.labels: Tensor | None = None
        self.guidance_scale = 1.0

    @property
    def has_variance(self) -> bool:
        """Whether the model predicts the variance of the noise, see ``score_and_variance``."""
        return False

    @abstractmethod
    def score(self, x: Tensor, t: Time) -> Tensor:
        """Return the Stein score grad_x log p_t(x): (B, *). It is differentiable if autograd is
        enabled."""

    @abstractmethod
    def score_cost(self, t: float) -> int:
        """Return the network evaluations (NFE) of a call of ``score``, see
        ``LogDensityEstimate.nfe``."""

    def at(self, rows: Tensor) -> Self:
        """Return the model for the points with indices ``rows`` (b,) in a batch of n blocks of B
        points, with the labels of these points."""
        if self.labels is None:
            return self
        other = copy(self)
        other.labels = self.labels[rows.to(self.labels.device) % len(self.labels)]
        return other

    def with_t_margin(self, t_margin: float) -> Self:
        """Return a copy with another margin at t = 1. With a smaller margin than in training, the
        network is evaluated at times that it was not trained on.

        Raises:
            UserError: for a margin out of range.
        """
        other = copy(self)
        other.start, other.end = self.path.interval(check_argument(Margin, "t_margin", t_margin))
        return other

    def conditioned_on(self, labels: Tensor, guidance_scale: float = 1.0) -> Self:
        r"""Return the model of p_t(x | y) for class labels y (B,), with g = ``guidance_scale``:

            (1 - g) log p_t(x) + g log p_t(x | y),

        up to a constant. Both scores are its derivatives. For g > 1, the densities are not the
        marginals of a diffusion.

        Raises:
            UserError: for a guidance scale below 0.

        Source: Ho and Salimans 2022, arXiv:2207.12598.
        """
        other = copy(self)
        guidance_scale = check_argument(NonNegative, "guidance_scale", guidance_scale)
        other.labels, other.guidance_scale = labels, guidance_scale
        return other


class TimeScoreModel(ScoreModel):
    """Model of the time score d/dt log p_t(x) and, with a Stein head, of the Stein score.

    >>> from ebm_app import EBM
    >>> model = EBM.from_pretrained("digits").model
    >>> x = torch.zeros(2, 1, 8, 8)
    >>> model.output(x, 0.5).score.shape, model.log_density(x, model.end).shape
    (torch.Size([2, 1, 8, 8]), torch.Size([2]))

    Args:
        net: (features, time (B,)) -> tensor whose first channels predict the terms of the time
            score, or, with a single output, the time score itself; see ``features``.
        path: path.
        t_margin: margin of the interval of times, as in ``GaussianPath.interval``.
        prediction: what the network predicts, a key of ``PREDICTIONS``.
        stein_channels: number of last output channels (dimension 1) that are the Stein head h,
            with score = a_t x + b_t h; 0 for no head.
        num_levels: number of grey levels of the data, for the prediction "levels".
        num_nodes: quadrature nodes for the whole interval, at least 3. An interval with a fraction
            s of the arc length uses n + s (num_nodes - n) nodes with n = ``MIN_NODES``. On
            Gaussian data it is then as accurate as the whole interval; with s num_nodes nodes it
            is not.
        time_input: time input of the network, a key of ``TIME_INPUTS``.
        input_frequencies: Fourier features of the input, see ``features``; n frequencies multiply
            the input channels by 1 + 2 n.
        condition_dim: number of additional input channels, one constant plane per number of a
            condition (see ``augmentation``).

    Raises:
        UserError: for an unknown prediction or time_input, or a prediction that does not support
            the path or needs a Stein head.
    """

    #: Network evaluations of a forward pass of the model
    passes: ClassVar[int] = 1

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        t_margin: float,
        prediction: str = "normalised",
        stein_channels: int = 0,
        num_levels: int = 256,
        num_nodes: int = 32,
        time_input: str = "arc_length",
        input_frequencies: Sequence[float] = (),
        condition_dim: int = 0,
    ) -> None:
        super().__init__(path, path.interval(t_margin))
        self.net, self.t_margin, self.num_levels = net, t_margin, num_levels
        self.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)
        self.prediction = PREDICTIONS[choose("prediction", prediction, PREDICTIONS)]
        self.prediction.check(path, stein_channels > 0)
        self.stein_channels = stein_channels
        self.time_input = TIME_INPUTS[choose("time_input", time_input, TIME_INPUTS)]
        self.input_frequencies, self.condition_dim = tuple(input_frequencies), condition_dim

    @property
    def has_score(self) -> bool:
        """Whether ``output`` has a Stein score."""
        return self.stein_channels > 0

    @property
    def has_variance(self) -> bool:
        """Whether ``output`` has a posterior variance (see ``prediction``)."""
        return self.prediction.needs_head

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, labels: Tensor | None = None
    ) -> ModelOutput:
        """Evaluate the network.

        Args:
            x: (B, *). t: (B,) float64.
            condition: augmentation parameters (B, condition_dim), zero if None.
            labels: class labels (B,) int64, for a class-conditional network.
        """
        time = self.net_time(t).to(x.dtype)
        inputs = self.with_condition([x, self.features(x, t)], condition)
        out = self.net(inputs, time) if labels is None else self.net(inputs, time, labels)
        # scales reach 1e5, which overflows half precision
        out = out if out.dtype == torch.float64 else out.float()
        raw, head = out.tensor_split([out.shape[1] - self.stein_channels], dim=1)
        components, variance, head = self.prediction.components(
            self.path, x, t, raw, head, self.num_levels
        )
        if not self.stein_channels:
            return ModelOutput(components, None)
        skip, gain = self.path.score_skip(t), self.path.score_gain(t)
        score = expand_like(skip, x) * x + expand_like(gain, x) * head
        return ModelOutput(components, score, variance)

    def with_nodes(self, num_nodes: int) -> Self:
        """Return a copy with another number of quadrature nodes."""
        other = copy(self)
        other.num_nodes = check_argument(Nodes, "num_nodes", num_nodes)
        return other

    def net_time(self, t: Tensor) -> Tensor:
        """Return the time input (B,) of the network for t (B,) float64."""
        return self.time_input(self.path, self.interval, t)

    def features(self, x: Tensor, t: Tensor) -> Tensor:
        r"""Return g sin(2 pi f x) and g cos(2 pi f x) for each of F frequencies f, concatenated
        along dimension 1: (B, C, *) -> (B, 2 F C, *).

        These Fourier features resolve the bins of quantised data (Kingma et al. 2021,
        arXiv:2107.00630, appendix C). The gain g = exp(-2 pi^2 f^2 v_t) is the expected amplitude
        of a feature under noise of variance v_t. Without it, clean points at early times, as in a
        likelihood, would have features that no noisy training point has.
        """
        if not self.input_frequencies:
            return x[:, :0]
        variance = self.path.variance(t)
        angles = torch.stack([2 * math.pi * f * x for f in self.input_frequencies], 1)
        logs = [-2 * (math.pi * f) ** 2 * variance for f in self.input_frequencies]
        gain = torch.stack(logs, 1).exp().flatten()  # (B F,)
        waves = torch.stack([angles.sin(), angles.cos()], 2).flatten(0, 1)
        waves = expand_like(gain, waves) * waves
        return waves.unflatten(0, angles.shape[:2]).flatten(1, 3)

    def with_condition(self, channels: list[Tensor], condition: Tensor | None) -> Tensor:
        """Concatenate channels (B, *), along dimension 1, with the planes of the condition."""
        if self.condition_dim:
            x = channels[0]
            if condition is None:
                condition = x.new_zeros(len(x), self.condition_dim)
            planes = condition.to(x.dtype).reshape(*condition.shape, *(1,) * (x.ndim - 2))
            channels = [*channels, planes.expand(-1, -1, *x.shape[2:])]
        return torch.cat(channels, dim=1)

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
        """Return terms that sum to the time score: (B, *) float64, one per dimension, or (B, 1)
        if the model only has the sum."""
        return self.output(x, t).components.double()

    def score(self, x: Tensor, t: Time) -> Tensor:
        return self.output(x, t).score if self.has_score else self.log_density_gradient(x, t)

    def score_and_variance(self, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        """Return grad_x log p_t(x) and Var[eps | x_t = x] per dimension, (B, *) each, of a model
        with a variance."""
        output = self.output(x, t)
        gain = self.path.noise_variance_gain(torch.as_tensor(t, dtype=torch.float64))
        return output.score, expand_like(gain, x) * output.variance

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

    def level_log_prob(self, levels: Tensor, x: Tensor, t: float) -> Tensor:
        """Return log P(levels | x_t = x) in nats per dimension, (B, *) float64, by the Gaussian
        with the predicted posterior moments, restricted to the grey levels."""
        time, path = torch.tensor(t, dtype=torch.float64), self.path
        score, variance = self.score_and_variance(x, t)
        # x1 = (x - sqrt(v) eps) / alpha
        variance = path.variance(time) / path.alpha(time).square() * variance.double()
        mean = path.denoise(x, score, time).double()
        return level_log_prob(levels, mean, variance, self.num_levels)

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
        return self._cost(1) if self.has_score else self.gradient_cost(t)

    def _at_nodes(self, function: ChunkFunction, x: Tensor, rule: Rule) -> Tensor:
        """Evaluate a function of (x, t) for x (B, *) at the n nodes of a rule: (n, B, *)."""
        points = x.expand(len(rule.nodes), *x.shape)
        return evaluate_in_chunks(function, points, rule.nodes)[0]

    def _rule(self, t0: float, t1: float) -> Rule:
        counts = (self.num_nodes, min(MIN_NODES, self.num_nodes))
        return arc_length_rule(self.path, (self.start, self.end), (t0, t1), *counts)
