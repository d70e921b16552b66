"""Paths from N(0, I) to the data, whose marginals have a known reference density."""

import math

import torch
from torch import Tensor

from ebm_app.paths.base import GaussianPath, PathSample, invert
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import expand_like, standard_normal_log_density


class OneSidedPath(GaussianPath):
    """Path from N(0, I) with z = x1: x_t = alpha_t x1 + sqrt(v_t) x0, so eps is x0."""

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, noise: Tensor | None = None) -> PathSample:
        """Draw a point at ``t`` (B,) from noise ``x0`` and data ``x1`` (B, *)."""
        return super().sample(x0, x1, t, x0)

    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(sample.x1), sample.x1

    def interval(self, t_margin: float) -> tuple[float, float]:
        return 0.0, 1.0 - t_margin

    def reference_log_density(self, x: Tensor) -> Tensor:
        """Return log p_0(x) = log N(x; 0, I) per dimension, in nats: (B, *) -> (B, *) float64."""
        return standard_normal_log_density(x.double())

    def log_snr(self, t: Tensor) -> Tensor:
        """Return the log signal-to-noise ratio log(c alpha_t^2 / v_t), which increases in t."""
        return (self.c * self.alpha(t).square() / self.variance(t)).log()

    def log_snr_inverse(self, ratio: Tensor) -> Tensor:
        """Return the time t with log_snr(t) = ``ratio``, see ``invert``."""
        return invert(self.log_snr, ratio)

    def time_of_ratio(self, noise_to_signal: float) -> float:
        """Return the time t with sqrt(v_t) / alpha_t = ``noise_to_signal``, which decreases in
        t."""
        log_snr = math.log(self.c) - 2 * math.log(noise_to_signal)
        return self.log_snr_inverse(torch.tensor(log_snr, dtype=torch.float64)).item()

    def diffuse(self, x: Tensor, t: float, std: float, noise: Tensor) -> tuple[Tensor, float]:
        r"""Return x_r (B, *) and r < t, the point x = x_t after the diffusion from t to r,

            x_r = alpha_r (x / alpha_t + std noise),   v_r / alpha_r^2 = v_t / alpha_t^2 + std^2.

        Args:
            std: standard deviation of the added noise, relative to the data.
            noise: standard normal numbers (B, *).
        """
        time = torch.tensor(t, dtype=torch.float64)
        alpha_t, v_t = self.alpha(time).item(), self.variance(time).item()
        r = self.time_of_ratio(math.sqrt(v_t / alpha_t**2 + std**2))
        alpha_r = self.alpha(torch.tensor(r, dtype=torch.float64)).item()
        return alpha_r * (x / alpha_t + std * noise), r

    def velocity(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        r"""Return the probability-flow velocity of the marginals from the Stein score, for
        alpha_t > 0: (B, *).

            u_t(x) = (alpha'/alpha) x + ((alpha'/alpha) v - v'/2) score.

        Source: Song et al. 2021, arXiv:2011.13456, eq. 13, written for x_t = alpha_t x1 +
        sqrt(v_t) noise.
        """
        v, v_dt = self.variance(t), self.variance_dt(t)
        drift = self.alpha_dt(t) / self.alpha(t)
        return expand_like(drift, x) * x + expand_like(drift * v - v_dt / 2, x) * score

    def denoise(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        """Return E[x1 | x_t = x] = (x + v_t score) / alpha_t by Tweedie's formula, for alpha_t >
        0: (B, *)."""
        return (x + expand_like(self.variance(t), x) * score) / expand_like(self.alpha(t), x)

    def marginal_variance(self, t: Tensor) -> Tensor:
        """Return m_t = c alpha^2 + v, the second moment of x_t per dimension."""
        return self.c * self.alpha(t).square() + self.variance(t)

    def score_skip(self, t: Tensor) -> Tensor:
        """Return -1/m, so that the head learns the difference from the score -x/m of Gaussian data
        with variance c, which vanishes at t = 0 (like the preconditioning of Karras et al. 2022,
        arXiv:2206.00364)."""
        return -1 / self.marginal_variance(t)

    def score_gain(self, t: Tensor) -> Tensor:
        """Return sqrt(c) alpha / sqrt(v m), the standard deviation of the difference in
        ``score_skip``."""
        m = self.marginal_variance(t)
        return math.sqrt(self.c) * self.alpha(t) / (self.variance(t) * m).sqrt()

    def variance_gain(self, t: Tensor) -> Tensor:
        """Return c alpha / m (alpha v' / 2v - alpha'), the factor of the posterior variance of the
        Stein head's target in a term of the time score (see ``parametrisation``)."""
        alpha, v = self.alpha(t), self.variance(t)
        rate = alpha * self.variance_dt(t) / (2 * v) - self.alpha_dt(t)
        return self.c * alpha / self.marginal_variance(t) * rate

    def noise_variance_gain(self, t: Tensor) -> Tensor:
        """Return c alpha^2 / m, the factor of the same posterior variance in Var[eps | x_t]."""
        return self.c * self.alpha(t).square() / self.marginal_variance(t)


def require_one_sided(path: GaussianPath) -> OneSidedPath:
    """Return ``path`` if it starts from N(0, I).

    Raises:
        UserError: otherwise, because its reference density is unknown.
    """
    if isinstance(path, OneSidedPath):
        return path
    raise UserError(
        f"Expected a path from N(0, I), got {type(path).__name__}, whose reference density is "
        "unknown. Use linear_vp or vp."
    )
