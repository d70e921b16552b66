r"""Moves of annealed chains from the distribution of one temperature to that of the next.

A denoising move from time s to t > s draws from a Gaussian with the mean of Tweedie's formula and
one variance u for all dimensions. The move back adds the noise of the path. With
x_t = alpha_t x1 + sqrt(v_t) eps,

    q(x_s | x_t) = N(r x_t, w I),     r = alpha_s / alpha_t,  w = v_s - r^2 v_t,
    p(x_t | x_s) = N((x_s + w score_s(x_s)) / r, u I).

log q - log p enters the weight of the chain. The weights are exact for any score; their variance
is small if the score is close to grad log p_s and p_s is close to p_t with added noise.

Sources: Doucet, Grathwohl, Matthews, Strathmann 2022, arXiv:2208.07698, for the weights; Bao et
al. 2022, arXiv:2201.06503, for the variance.
"""

import math

import torch
from torch import Tensor

from ebm_app.paths import OneSidedPath
from ebm_app.sampling.base import Score
from ebm_app.sampling.hmc import stay
from ebm_app.utils.random import Noise
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch


class Move:
    """Move between two temperatures; this base class is the identity.

    Each method maps positions (B, *) and a source of noise to new positions (B, *) and the log
    ratio (B,) float64 that enters the weight of a chain. ``forward`` moves to the next
    temperature, ``backward`` is the reverse move, and ``fit`` fits the move to pilot chains, then
    moves them forward.
    """

    forward = backward = fit = staticmethod(stay)


class DenoisingMove(Move):
    """A denoising step from time ``start`` to ``end`` on a path from N(0, I), with alpha > 0 at
    ``start``.

    ``variance``, the u of the module docstring, is v_t w / v_s, which is exact for a known x_1.
    ``fit`` increases it.

    >>> from ebm_app.paths import LinearVPPath
    >>> from ebm_app.utils.random import BatchNoise
    >>> move = DenoisingMove(lambda x, t: -x, LinearVPPath(), 0.3, 0.5)
    >>> y, log_ratio = move.forward(torch.randn(3, 2), BatchNoise(torch.Generator()))
    >>> y.shape, log_ratio.shape
    (torch.Size([3, 2]), torch.Size([3]))
    """

    def __init__(self, score: Score, path: OneSidedPath, start: float, end: float) -> None:
        times = torch.tensor([start, end], dtype=torch.float64)
        alpha, v = path.alpha(times).tolist(), path.variance(times).tolist()
        self.score, self.start = torch.no_grad()(score), start
        self.ratio = alpha[0] / alpha[1]
        self.added = v[0] - self.ratio**2 * v[1]
        self.variance = v[1] * self.added / v[0]

    def fit(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Set the best variance for samples ``x`` (B, *) of p_s, u = (w / r^2)
        (1 - w E|score|^2 / D), then move forward."""
        score = self.score(x, self.start)
        share = 1 - self.added * score.double().square().mean().item()
        self.variance = max(self.variance, self.added / self.ratio**2 * share)
        return self.forward(x, noise, score)

    def forward(
        self, x: Tensor, noise: Noise, score: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw x_t (B, *) given ``x`` = x_s; the log ratio is log q(x_s | x_t) - log p(x_t |
        x_s)."""
        mean = self._mean(x, self.score(x, self.start) if score is None else score)
        y = mean + math.sqrt(self.variance) * noise.normal_like(x)
        return y, self._log_ratio(x, y, mean)

    def backward(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Draw x_s given ``x`` = x_t; the log ratio is log p(x_t | x_s) - log q(x_s | x_t)."""
        noised = self.ratio * x + math.sqrt(self.added) * noise.normal_like(x)
        mean = self._mean(noised, self.score(noised, self.start))
        return noised, -self._log_ratio(noised, x, mean)

    def _mean(self, x: Tensor, score: Tensor) -> Tensor:
        return (x + self.added * score) / self.ratio

    def _log_ratio(self, x: Tensor, y: Tensor, mean: Tensor) -> Tensor:
        back = _log_density(x - self.ratio * y, self.added)
        return back - _log_density(y - mean, self.variance)


def _log_density(residual: Tensor, variance: float) -> Tensor:
    """Return log N(residual; 0, variance I): (B, *) -> (B,) float64."""
    unit = standard_normal_log_density(residual.double() / math.sqrt(variance))
    return sum_except_batch(unit - math.log(variance) / 2)
