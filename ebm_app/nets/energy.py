r"""Energy networks: one network for log p_t(x), its Stein score and its time score.

The base q_t has independent pixels on the grey levels, seen through the noise of the path. With
levels at c_k (see ``grey_levels``) and their frequencies pi_k in the training images,

    log q_t(x) = sum_i log sum_k pi_k N(x_i; alpha_t c_k, v_t).

It is normalised at every t, and equals N(0, I) at t = 0. The posterior of a pixel is a softmax,

    w_k(x_i) proportional to pi_k exp(-e_k^2 / 2),    e_k = (x_i - alpha_t c_k) / sqrt(v_t),

so the derivatives of posterior means are covariances under w. The log density is that of the base
plus a learned difference,

    log p_t(x) = log q_t(x) + G u sum_i [f_i + sum_j phi_ij g_ij],

where u is the fraction of the arc length of the path up to t, f and g are the outputs of the
network, phi are the posterior means of the base, and G = 0.5 keeps the outputs of order 1. At
t = 0 the density is exactly N(0, I); at later times it is normalised if the time derivative is
exact. Both derivatives come from one backward pass of the same function, unlike the two outputs of
a ``TimeScoreModel`` with a Stein head.

The network is distilled from a time score model (``training.distillation``) and ends where that
model, as a decoder, recovers the grey levels: at a noise of 0.7 of their distance.

Source: Guth, Kadkhodaie, Simoncelli 2025, arXiv:2506.05310, who train both derivatives of an
energy on data.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ebm_app.config import Calibration
from ebm_app.nets.model import (
    ModelOutput,
    Time,
    TimeScoreModel,
    arc_length_fraction,
    expand_time,
)
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.utils.tensors import expand_like, leaves, sum_except_batch

#: Factor G of the network outputs in the energy
GAIN = 0.5
#: Number of most frequent levels whose posterior probabilities are features
NUM_FREQUENT = 8
#: Points per chunk on a CPU, to fit its cache, and on other devices, to limit memory
CHUNK, LARGE_CHUNK = 2**10, 2**16


class MixtureOutput(NamedTuple):
    """Log density (B, C, *) per dimension in nats and features (B, J C, *), with their derivatives
    with respect to x and t, of the same shapes."""

    log_density: Tensor
    score: Tensor
    time_score: Tensor
    features: Tensor
    features_dx: Tensor
    features_dt: Tensor


class LevelMixture(nn.Module):
    """Density of independent pixels on the grey levels, and J features per channel.

    The features are posterior means: of sin(2 pi f c) and cos(2 pi f c) for each frequency f, of
    the level c, and of the indicators of the most frequent levels.

    Args:
        path: path from N(0, I).
        channels: C.
        num_levels: number of grey levels L.
        frequencies: frequencies f, in cycles.

    Attributes:
        log_weights: log pi (C, L), up to a constant. Uniform until ``fit``.
        frequent: indices (C, K) of the most frequent levels.
    """

    def __init__(
        self, path: GaussianPath, channels: int, num_levels: int, frequencies: Sequence[float]
    ) -> None:
        super().__init__()
        self.path = path
        self.register_buffer("log_weights", torch.zeros(channels, num_levels))
        frequent = torch.arange(min(NUM_FREQUENT, num_levels))
        self.register_buffer("frequent", frequent.repeat(channels, 1))
        # not in the state_dict: derived from the arguments, so never on the meta device
        steps = torch.arange(num_levels, dtype=torch.float64, device="cpu")
        c = -1 + (2 * steps + 1) / num_levels
        angles = [2 * math.pi * frequency * c for frequency in frequencies]
        waves = [wave for angle in angles for wave in (angle.sin(), angle.cos())]
        self.register_buffer("waves", torch.stack([*waves, c], 1), persistent=False)

    def fit(self, levels: Tensor) -> None:
        """Set pi to the histogram of images (N, C, H, W), with one added pixel of each level."""
        for channel, row in enumerate(self.log_weights):
            pixels = levels[:, channel].flatten().long()
            counts = 1 + torch.bincount(pixels, minlength=len(row))
            row.copy_(counts.log() - counts.sum().log())
            self.frequent[channel] = counts.topk(self.frequent.shape[1]).indices.sort().values

    def forward(self, x: Tensor, t: Tensor) -> MixtureOutput:
        """Evaluate the density at x (B, C, *) and t (B,) float64. The output is differentiable if
        ``x`` or ``t`` requires a gradient."""
        sigma = self.path.variance(t).sqrt()
        sigma_dt = self.path.variance_dt(t) / (2 * sigma)
        coefficients = (self.path.alpha(t), sigma, self.path.alpha_dt(t), sigma_dt)
        columns = [x, *(expand_like(value, x).expand_as(x) for value in coefficients)]
        size = CHUNK if x.device.type == "cpu" else LARGE_CHUNK
        channels = []
        with torch.autocast(x.device.type, enabled=False):
            for channel, log_weights in enumerate(self.log_weights.to(x.dtype).log_softmax(1)):
                indicators = one_hot(self.frequent[channel], len(log_weights)).T
                table = torch.cat([self.waves, indicators], 1).to(x.dtype)
                chunks = (column[:, channel].reshape(-1, 1).split(size) for column in columns)
                outputs = (
                    self._evaluate(log_weights, table, *chunk)
                    for chunk in zip(*chunks, strict=True)
                )
                channels.append([torch.cat(part) for part in zip(*outputs, strict=True)])
        shape = (len(x), *x.shape[2:], -1)
        parts = (torch.stack(part, -1) for part in zip(*channels, strict=True))
        return MixtureOutput(*(part.reshape(shape).movedim(-1, 1) for part in parts))

    def _evaluate(self, log_weights: Tensor, table: Tensor, *columns: Tensor) -> list[Tensor]:
        """Return the fields of ``MixtureOutput``, (n, 1) or (n, J), for features ``table`` (L, J)
        and columns (n, 1) of points, alpha, sigma, alpha' and sigma'."""
        (x, alpha, sigma, alpha_dt, sigma_dt), c = columns, self.waves[:, -1].to(columns[0])
        e = (x - alpha * c) / sigma
        logits = log_weights - 0.5 * e.square()
        largest = logits.detach().amax(1, keepdim=True)
        weights = (logits - largest).exp()
        total = weights.sum(1, keepdim=True)
        weights = weights / total
        # the logits have derivatives -e / sigma in x, and e (alpha' c + sigma' e) / sigma in t
        by_x, by_t = -weights * e, weights * e * (alpha_dt * c + sigma_dt * e)
        mean_x, mean_t = by_x.sum(1, keepdim=True), by_t.sum(1, keepdim=True)
        features = weights @ table
        return [
            largest + (total / sigma).log() - 0.5 * math.log(2 * math.pi),
            mean_x / sigma,
            (mean_t - sigma_dt) / sigma,
            features,
            (by_x @ table - mean_x * features) / sigma,
            (by_t @ table - mean_t * features) / sigma,
        ]


class EnergyModel(TimeScoreModel):
    """Network for log p_t(x) of images with grey levels, with both derivatives from one backward
    pass, and a decoder of the grey levels at its last time.

    >>> from ebm_app import EBM
    >>> model = EBM.from_pretrained("digits-energy").model
    >>> x, t = torch.randn(3, 1, 8, 8), torch.full((3,), 0.5, dtype=torch.float64)
    >>> model.terms(x, t).shape, model(x, t).score.shape, model(x, t).components.shape
    (torch.Size([3, 1, 8, 8]), torch.Size([3, 1, 8, 8]), torch.Size([3, 1]))

    Args:
        net: (B, C (2 + 2 F + K) + condition_dim, *) and time (B,) -> (B, C (2 + K), *), for F
            frequencies and K indicators, see ``LevelMixture``. The input has x and the features
            of the base; the output has f, and g for the last 1 + K features.
        path: path from N(0, I).
        t_margin: margin of the interval of times.
        channels, num_levels: C and number of grey levels.
        decoder: model of the posterior moments; its weights are frozen.
        num_nodes: quadrature nodes of ``log_ratio``, which integrates the time derivative.
        calibration: calibration offset at the last time.
        inputs: time_input, input_frequencies and condition_dim of ``TimeScoreModel``.

    Raises:
        UserError: for a path that does not start from N(0, I).
    """

    passes: ClassVar[int] = 2  # forward and backward

    def __init__(
        self,
        net: nn.Module,
        path: GaussianPath,
        t_margin: float,
        channels: int,
        num_levels: int,
        decoder: TimeScoreModel,
        num_nodes: int = 32,
        calibration: Calibration | None = None,
        **inputs: Any,
    ) -> None:
        settings = {"stein_channels": channels, "num_nodes": num_nodes, **inputs}
        super().__init__(net, require_one_sided(path), t_margin, **settings)
        self.base = LevelMixture(path, channels, num_levels, self.input_frequencies)
        self.decoder = decoder.requires_grad_(False)
        self.calibration = calibration or Calibration()

    def terms(self, x: Tensor, t: Time, condition: Tensor | None = None) -> Tensor:
        """Return the terms of log p_t(x) in nats, (B, *) float64, at x (B, *)."""
        time = expand_time(t, x)
        base = self.base(x, time)
        return base.log_density.double() + self.learned(x, base.features, time, condition)

    def learned(self, x: Tensor, features: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
        """Return the terms (B, *) float64 of the difference from the base."""
        shape, inputs = (-1, x.shape[1]), self.with_condition([x, features], condition)
        time = self.net_time(t).to(x.dtype)
        f, g = self.net(inputs, time).double().unflatten(1, shape).tensor_split([1], 1)
        phi = features.unflatten(1, shape)[:, -g.shape[1] :]
        fraction = arc_length_fraction(self.path, self.interval, t)
        return GAIN * expand_like(fraction, x.double()) * (f[:, 0] + (phi * g).sum(1))

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, labels: Tensor | None = None
    ) -> ModelOutput:
        """Return both derivatives of log p_t(x), with the time score as a single term (B, 1). They
        are differentiable if autograd is enabled.

        The derivatives of the base are in closed form, because second derivatives by autograd
        would double the cost of training.
        """
        is_kept, base = torch.is_grad_enabled(), self.base(x, t)
        # with a view of x, by_x excludes the dependence of the features on x
        with leaves(x.view_as(x), base.features, t.detach()) as inputs:
            total = self.learned(*inputs, condition).sum()
            by_x, by_features, rate = torch.autograd.grad(total, inputs, create_graph=is_kept)
        by_base = (by_features * base.features_dx).unflatten(1, (-1, x.shape[1])).sum(1)
        rates = (rate, base.time_score, by_features * base.features_dt)
        rate = sum(sum_except_batch(term[:, None].double()) for term in rates)
        return ModelOutput(rate.to(x.dtype)[:, None], base.score + by_x + by_base)

    def log_density(self, x: Tensor, t: Time) -> Tensor:
        """Return log p_t(x) in nats, up to log Z: (B, *) -> (B,) float64. Gradients are computed
        if ``x`` requires them."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return sum_except_batch(self.terms(x, t))

    def log_density_cost(self, t: float) -> int:
        return 1

    def log_density_gradient(self, x: Tensor, t: Time) -> Tensor:
        """Return grad_x log p_t(x): (B, *). It is differentiable if autograd is enabled."""
        return self.score(x, t)

    def gradient_cost(self, t: float) -> int:
        return self.score_cost(t)

    def level_log_prob(self, levels: Tensor, x: Tensor, t: float) -> Tensor:
        """Return log P(levels | x_t = x) in nats per dimension by the decoder, (B, *) float64."""
        return self.decoder.level_log_prob(levels, x, t)
