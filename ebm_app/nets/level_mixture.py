r"""Independent pixels on the grey levels, seen through the noise of a path.

With levels at c_k (see ``grey_levels``) and their frequencies pi_k in the training images,

    log p_t(x) = sum_i log sum_k pi_k N(x_i; alpha_t c_k, v_t).

This density is normalised at every t, and equals N(0, I) at t = 0. The posterior of a pixel is a
softmax,

    w_k(x_i) proportional to pi_k exp(-e_k^2 / 2),    e_k = (x_i - alpha_t c_k) / sqrt(v_t),

so the derivatives of posterior means are covariances under w.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ebm_app.paths import GaussianPath
from ebm_app.utils.tensors import expand_like

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
        c = -1 + (2 * torch.arange(num_levels, dtype=torch.float64) + 1) / num_levels
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
