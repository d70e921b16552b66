"""Path families: variance-preserving paths from N(0, I), and the Schrodinger bridge between any
two densities."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.paths.base import GaussianPath, PathSample
from ebm_app.paths.one_sided import OneSidedPath
from ebm_app.utils.fields import NonNegative, check_argument
from ebm_app.utils.tensors import derivative


def arc_length_integral(s: Tensor, one_minus_s2: Tensor, k: float) -> Tensor:
    r"""Return the integral of sqrt(k + (2 - k) r^2) / (1 - r^2) for r from 0 to ``s``, k > 0.

    The closed form is sqrt(2) asinh(sqrt(2) s / sqrt(k (1 - s^2))) - sqrt(2 - k)
    asinh(s sqrt((2 - k) / k)), or its analytic continuation for k > 2. ``one_minus_s2`` is a
    separate argument because computing 1 - s^2 from s loses digits near |s| = 1.
    """
    length = math.sqrt(2) * torch.asinh(math.sqrt(2 / k) * s / one_minus_s2.sqrt())
    if k <= 2:
        return length - math.sqrt(2 - k) * torch.asinh(s * math.sqrt((2 - k) / k))
    return length + math.sqrt(k - 2) * torch.asin(s * math.sqrt((k - 2) / k))


class VariancePreservingPath(OneSidedPath):
    """Path with v_t = 1 - alpha_t^2, for which derived quantities have closed forms."""

    def variance_dt(self, t: Tensor) -> Tensor:
        return -2 * self.alpha(t) * self.alpha_dt(t)

    def arc_length(self, t: Tensor) -> Tensor:
        """Return the arc length from alpha = 0 in closed form."""
        return arc_length_integral(self.alpha(t), self.variance(t), self.c)


class LinearVPPath(VariancePreservingPath):
    """Path with alpha_t = t and v_t = 1 - t^2, which starts exactly at the reference."""

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def variance(self, t: Tensor) -> Tensor:
        return (1 - t) * (1 + t)

    def alpha_dt(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)


class VPPath(VariancePreservingPath):
    """Path of the paper's image experiments, with the diffusion schedule
    alpha_t = exp(-(1-t)^2 (b1 - b0)/4 - (1-t) b0/2).

    alpha_0 is 0.0066, not 0, for b = (0.1, 20): the path starts close to the reference.
    """

    beta_min, beta_max = 0.1, 20.0

    def _log_alpha(self, t: Tensor) -> Tensor:
        remaining = 1 - t
        slope = self.beta_max - self.beta_min
        return -remaining.square() * slope / 4 - remaining * self.beta_min / 2

    def alpha(self, t: Tensor) -> Tensor:
        return self._log_alpha(t).exp()

    def variance(self, t: Tensor) -> Tensor:
        return -torch.expm1(2 * self._log_alpha(t))

    def alpha_dt(self, t: Tensor) -> Tensor:
        rate = (1 - t) * (self.beta_max - self.beta_min) + self.beta_min
        return self.alpha(t) * rate / 2


class LogSNRPath(VariancePreservingPath):
    """Path of a denoiser, given its log signal-to-noise ratio l_t = log(alpha_t^2 / v_t):
    alpha_t^2 = sigmoid(l_t), v_t = sigmoid(-l_t).

    Neither end is degenerate: the first time is not pure noise, and the last not pure data.

    >>> path = LogSNRPath(lambda t: 20 * t - 10)
    >>> path.variance(torch.tensor([0.5], dtype=torch.float64)).item()
    0.5

    Args:
        log_snr: l, an increasing elementwise function of times (B,) in [0, 1].
    """

    def __init__(self, log_snr: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._log_snr = log_snr

    def log_snr(self, t: Tensor) -> Tensor:
        return self._log_snr(t)

    def alpha(self, t: Tensor) -> Tensor:
        return torch.sigmoid(self._log_snr(t)).sqrt()

    def variance(self, t: Tensor) -> Tensor:
        return torch.sigmoid(-self._log_snr(t))

    def alpha_dt(self, t: Tensor) -> Tensor:
        return self.alpha(t) * self.variance(t) * derivative(self._log_snr, t) / 2


class SchrodingerBridgePath(GaussianPath):
    """Two-sided path with z = (x0, x1), mean (1 - t) x0 + t x1 and v_t = sigma^2 t (1 - t), for
    any p0 and p1.

    Args:
        sigma: scale of the noise. With 0, points can be drawn but no conditional score exists.
        c: E||x1 - x0||^2 / D.
    """

    def __init__(self, sigma: float = 1.0, c: float = 1.0) -> None:
        super().__init__(c)
        self.sigma = check_argument(NonNegative, "sigma", sigma)

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def variance(self, t: Tensor) -> Tensor:
        return self.sigma**2 * t * (1 - t)

    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        return sample.x0, sample.x1 - sample.x0

    def interval(self, t_margin: float) -> tuple[float, float]:
        return t_margin, 1.0 - t_margin

    def alpha_dt(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def variance_dt(self, t: Tensor) -> Tensor:
        return self.sigma**2 * (1 - 2 * t)

    def arc_length(self, t: Tensor) -> Tensor:
        """Return the arc length from t = 1/2 in closed form, for sigma > 0; it is infinite at both
        ends."""
        return arc_length_integral(2 * t - 1, 4 * t * (1 - t), self.c / self.sigma**2)
