"""Paths from N(0, I) that condition on the data alone."""

import math

import torch
from torch import Tensor

from ebm_app.paths.base import GaussianPath, PathSample, arc_length_integral
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import expand_like, find_time


class OneSidedPath(GaussianPath):
    """A path from N(0, I) with z = x1: x_t = alpha_t x1 + sqrt(v_t) x0, and eps is x0 itself."""

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, noise: Tensor | None = None) -> PathSample:
        """A point at ``t`` (B,) between noise ``x0`` and data ``x1`` (B, *); ``noise`` is not
        used."""
        return self.complete(x0, x1, t, eps=x0)

    def check_reference(self) -> None:
        """N(0, I) is the reference."""

    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(sample.x1), sample.x1

    def interval(self, eps: float) -> tuple[float, float]:
        return 0.0, 1.0 - eps

    def time_of_ratio(self, noise_to_signal: float) -> float:
        """The time t with sqrt(v_t) / alpha_t = ``noise_to_signal``, which falls in t.

        Raises:
            UserError: where no time before 1 has it.
        """

        def excess(t: Tensor) -> Tensor:
            return self.variance(t).sqrt() - noise_to_signal * self.alpha(t)

        start = torch.zeros((), dtype=torch.float64)
        if not (noise_to_signal > 0 and excess(start) > 0):
            raise UserError(
                f"the path has no time with noise to signal {noise_to_signal}: choose another"
            )
        return find_time(excess, 0.0, 1.0)

    def denoise(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        """Tweedie's formula E[x1 | x_t = x] = (x + v_t score) / alpha_t, for alpha_t > 0."""
        return (x + expand_like(self.variance(t), x) * score) / expand_like(self.alpha(t), x)

    def score_skip(self, t: Tensor) -> Tensor:
        """-1/m with m = c alpha^2 + v: the Stein score of Gaussian data of variance c.

        The head then learns the residual over that score, which vanishes at t = 0.
        Source: the preconditioning of Karras et al. 2022, arXiv:2206.00364, derived for this path.
        """
        return -1 / self.marginal_variance(t)

    def score_gain(self, t: Tensor) -> Tensor:
        """sqrt(c) alpha / sqrt(v m): the residual's standard deviation where E x1^2 = c."""
        m = self.marginal_variance(t)
        return math.sqrt(self.c) * self.alpha(t) / (self.variance(t) * m).sqrt()

    def variance_gain(self, t: Tensor) -> Tensor:
        """What a posterior variance of 1 of a Stein head's target adds to a component of the time
        score (see ``parametrisation``): c alpha / m (alpha v' / 2v - alpha'), in nats per unit of
        t."""
        alpha, v = self.alpha(t), self.variance(t)
        rate = alpha * self.variance_dt(t) / (2 * v) - self.alpha_dt(t)
        return self.c * alpha / self.marginal_variance(t) * rate

    def noise_variance_gain(self, t: Tensor) -> Tensor:
        """c alpha^2 / m: Var[eps | x_t] where the posterior variance of a Stein head's target is
        1."""
        return self.c * self.alpha(t).square() / self.marginal_variance(t)

    def marginal_variance(self, t: Tensor) -> Tensor:
        """m_t = c alpha^2 + v, the second moment of x_t per component."""
        return self.c * self.alpha(t).square() + self.variance(t)


class _VariancePreservingPath(OneSidedPath):
    """v_t = 1 - alpha_t^2, hence closed forms for what the base class derives."""

    def variance_dt(self, t: Tensor) -> Tensor:
        return -2 * self.alpha(t) * self.alpha_dt(t)

    def arc_length(self, t: Tensor) -> Tensor:
        """Arc length measured from alpha = 0, in closed form."""
        return arc_length_integral(self.alpha(t), self.variance(t), self.c)


class LinearVPPath(_VariancePreservingPath):
    """alpha_t = t, v_t = 1 - t^2: starts at the reference exactly."""

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def variance(self, t: Tensor) -> Tensor:
        return (1 - t) * (1 + t)

    def alpha_dt(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)


class VPPath(_VariancePreservingPath):
    """The diffusion schedule alpha_t = exp(-(1-t)^2 (b1 - b0)/4 - (1-t) b0/2), the paper's image
    path.

    alpha_0 is 0.0066 for b = (0.1, 20), not 0: the reference is reached only nearly.
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


class LogSNRPath(_VariancePreservingPath):
    """The log signal-to-noise ratio l = log(alpha_t^2 / v_t) runs evenly from ``first`` to
    ``last``: alpha_t^2 = sigmoid(l), v_t = sigmoid(-l). Its ends are those of the scheduler of a
    diffusion model, neither noise alone nor data alone."""

    def __init__(self, first: float, last: float) -> None:
        super().__init__()
        self.first, self.last = first, last

    def _log_ratio(self, t: Tensor) -> Tensor:
        return self.first + (self.last - self.first) * t

    def alpha(self, t: Tensor) -> Tensor:
        return torch.sigmoid(self._log_ratio(t)).sqrt()

    def variance(self, t: Tensor) -> Tensor:
        return torch.sigmoid(-self._log_ratio(t))

    def alpha_dt(self, t: Tensor) -> Tensor:
        return self.alpha(t) * self.variance(t) * (self.last - self.first) / 2
