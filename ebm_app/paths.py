r"""Conditional Gaussian probability paths from the reference (t = 0) to the data (t = 1).

A path conditions on its endpoints z = (x0, x1) and is Gaussian with isotropic noise,

    p_t(x | z) = N(x; base(z) + alpha_t delta(z), v_t I),     x_t = base + alpha_t delta +
    sqrt(v_t) eps.

A subclass states alpha_t and v_t; everything else is derived here, once, by differentiation, and a
subclass may override a derived quantity by its closed form. With c = E||delta||^2 / D, per
component,

    conditional time score = (v'/2v)(eps^2 - 1) + (alpha'/sqrt(v)) delta eps
    its variance           = (v'/v)^2 / 2 + alpha'^2 c / v
    clock tau(t)           = integral of the square root of that variance (Fisher-Rao arc length).

Times are float64 tensors of shape (B,) or (); states have shape (B, *). Densities are in nats.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix B
(arXiv:2502.02300).
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.numerics import expand_like, sum_except_batch


class PathSample(NamedTuple):
    """A draw from a path: reference ``x0``, data ``x1``, point ``xt`` and residual ``eps`` of
    shape (B, *), time ``t`` of shape (B,)."""

    x0: Tensor
    x1: Tensor
    t: Tensor
    eps: Tensor
    xt: Tensor


def check_eps(eps: float) -> None:
    """Raise a UserError for a margin of times that leaves nothing between, or is none."""
    if not 0 < eps < 0.5:
        raise UserError(f"eps must lie between 0 and 0.5, not {eps}")


def arc_length(s: Tensor, one_minus_s2: Tensor, k: float) -> Tensor:
    r"""Integral of sqrt(k + (2 - k) r^2) / (1 - r^2) over r from 0 to ``s``, in closed form, for k
    > 0.

    It is sqrt(2) asinh(sqrt(2) s / sqrt(k (1 - s^2))) - sqrt(2 - k) asinh(s sqrt((2 - k) / k)),
    and its analytic continuation for k > 2. ``one_minus_s2`` is passed apart: 1 - s^2 computed
    from s would lose its digits near |s| = 1.
    """
    length = math.sqrt(2) * torch.asinh(math.sqrt(2 / k) * s / one_minus_s2.sqrt())
    if k <= 2:
        return length - math.sqrt(2 - k) * torch.asinh(s * math.sqrt((2 - k) / k))
    return length + math.sqrt(k - 2) * torch.asin(s * math.sqrt((k - 2) / k))


class GaussianPath(ABC):
    """A conditional Gaussian path; see the module's docstring for its equations.

    Args:
        c: second moment per dimension E||delta||^2 / D assumed of the data; 1 is the paper's
        choice.
    """

    def __init__(self, c: float = 1.0) -> None:
        if not (c > 0 and math.isfinite(c)):
            raise UserError(f"the second moment c of a path must be positive and finite, not {c}")
        self.c = float(c)

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Coefficient alpha_t of delta(z)."""

    @abstractmethod
    def variance(self, t: Tensor) -> Tensor:
        """Conditional variance v_t per dimension."""

    @abstractmethod
    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        """(base, delta), each (B, *)."""

    @abstractmethod
    def interval(self, eps: float) -> tuple[float, float]:
        """The times kept when a margin ``eps`` is left at each end where the path is
        degenerate."""

    def alpha_dt(self, t: Tensor) -> Tensor:
        """d alpha_t / dt."""
        return torch.func.jvp(self.alpha, (t,), (torch.ones_like(t),))[1]

    def variance_dt(self, t: Tensor) -> Tensor:
        """d v_t / dt."""
        return torch.func.jvp(self.variance, (t,), (torch.ones_like(t),))[1]

    def mean(self, sample: PathSample) -> Tensor:
        """Conditional mean base + alpha_t delta, (B, *)."""
        base, delta = self.endpoints(sample)
        return base + expand_like(self.alpha(sample.t), delta) * delta

    def complete(self, x0: Tensor, x1: Tensor, t: Tensor, eps: Tensor) -> PathSample:
        """The sample whose residual is ``eps``: x_t = mean + sqrt(v_t) eps."""
        draft = PathSample(x0, x1, t, eps, x1)
        return draft._replace(xt=self.mean(draft) + expand_like(self.variance(t).sqrt(), x1) * eps)

    def conditional_components(self, sample: PathSample) -> Tensor:
        """d/dt log p_t(x_i | z) for every component i, in nats: (B, *)."""
        _, delta = self.endpoints(sample)
        v = self.variance(sample.t)
        spread = expand_like(self.variance_dt(sample.t) / (2 * v), delta)
        drift = expand_like(self.alpha_dt(sample.t) / v.sqrt(), delta)
        return spread * (sample.eps.square() - 1) + drift * delta * sample.eps

    def conditional_time_score(self, sample: PathSample) -> Tensor:
        """d/dt log p_t(x | z), the sum of its components: (B,)."""
        return sum_except_batch(self.conditional_components(sample))

    def conditional_score(self, sample: PathSample) -> Tensor:
        """Stein score grad_x log p_t(x | z) = -eps / sqrt(v_t): (B, *)."""
        return -sample.eps / expand_like(self.variance(sample.t).sqrt(), sample.eps)

    def score_skip(self, t: Tensor) -> Tensor:
        """a_t in the parametrisation score = a_t x + b_t h of a Stein head's output h."""
        return torch.zeros_like(t)

    def score_gain(self, t: Tensor) -> Tensor:
        """b_t in the parametrisation score = a_t x + b_t h: h then has variance near 1."""
        return -self.variance(t).rsqrt()

    def time_score_variance(self, t: Tensor, c: float | None = None) -> Tensor:
        """Variance of one component of the conditional time score under p_t(x, z), in nats^2 /
        t^2."""
        v = self.variance(t)
        moment = self.c if c is None else c
        return (self.variance_dt(t) / v).square() / 2 + self.alpha_dt(t).square() * moment / v

    def velocity(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        r"""Probability-flow velocity of the marginals from the Stein score, for a reference
        N(0, I) and alpha_t > 0: (B, *).

        With n_t the variance of x_t given x1,

            u_t(x) = (alpha'/alpha) x + ((alpha'/alpha) n - n'/2) score.

        Source: Song et al. 2021, arXiv:2011.13456, eq. 13, written for x_t = alpha_t x1 +
        sqrt(n_t) noise.

        Raises:
            UserError: on a path that states no such variance.
        """
        raise UserError(f"{type(self).__name__} has no velocity: use a path from N(0, I)")

    def _velocity(self, x: Tensor, score: Tensor, t: Tensor, n: Tensor, n_dt: Tensor) -> Tensor:
        drift = self.alpha_dt(t) / self.alpha(t)
        return expand_like(drift, x) * x + expand_like(drift * n - n_dt / 2, x) * score

    def clock(self, t: Tensor) -> Tensor:
        """Fisher-Rao arc length per dimension, measured from t = 1/2, for t < 1: (B,) -> (B,).

        Integrated by 128 Gauss-Legendre nodes in u = logit(t), where the rate is smooth at both
        ends; t = 0 is taken as 2e-16.
        """
        u = torch.logit(t).clamp_min(-_MAX_LOGIT)[..., None]
        nodes, weights = (torch.as_tensor(a, device=t.device) for a in _LOGIT_RULE)
        time = torch.sigmoid(u * (1 + nodes) / 2)
        rate = self.time_score_variance(time).sqrt() * time * (1 - time)
        return (rate * weights * u / 2).sum(-1)

    def clock_inverse(self, tau: Tensor) -> Tensor:
        """The time t with clock(t) = ``tau``, by bisection in logit(t) to the precision of
        float64."""
        low, high = torch.full_like(tau, -_MAX_LOGIT), torch.full_like(tau, _MAX_LOGIT)
        for _ in range(64):
            middle = (low + high) / 2
            before = self.clock(torch.sigmoid(middle)) < tau
            low, high = torch.where(before, middle, low), torch.where(before, high, middle)
        return torch.sigmoid((low + high) / 2)


_MAX_LOGIT = 36.0  # sigmoid(36) is the float64 next to 1
_LOGIT_RULE = np.polynomial.legendre.leggauss(128)


class OneSidedPath(GaussianPath):
    """A path from N(0, I) with z = x1: x_t = alpha_t x1 + sqrt(v_t) x0, and eps is x0 itself."""

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor) -> PathSample:
        """x_t for reference ``x0`` ~ N(0, I) and data ``x1`` of shape (B, *) and ``t`` of shape
        (B,)."""
        return self.complete(x0, x1, t, eps=x0)

    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(sample.x1), sample.x1

    def interval(self, eps: float) -> tuple[float, float]:
        return 0.0, 1.0 - eps

    def time_of_ratio(self, noise_to_signal: float) -> float:
        """The time t with sqrt(v_t) / alpha_t = ``noise_to_signal``, which falls in t: by
        bisection.

        Raises:
            UserError: where no time before 1 has it.
        """
        low, high = 0.0, 1.0

        def ratio_exceeds(t: float) -> bool:
            time = torch.tensor(t, dtype=torch.float64)
            return bool(self.variance(time).sqrt() > noise_to_signal * self.alpha(time))

        if not noise_to_signal > 0 or not ratio_exceeds(low):
            raise UserError(f"the path has no time with noise to signal {noise_to_signal}")
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if ratio_exceeds(middle) else (low, middle)
        return high

    def velocity(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        return self._velocity(x, score, t, self.variance(t), self.variance_dt(t))

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
        score (see ``predictions``): c alpha / m (alpha v' / 2v - alpha'), in nats per unit of
        t."""
        alpha, v = self.alpha(t), self.variance(t)
        rate = alpha * self.variance_dt(t) / (2 * v) - self.alpha_dt(t)
        return self.c * alpha / self.marginal_variance(t) * rate

    def marginal_variance(self, t: Tensor) -> Tensor:
        """m_t = c alpha^2 + v, the second moment of x_t per component."""
        return self.c * self.alpha(t).square() + self.variance(t)


class _VariancePreservingPath(OneSidedPath):
    """v_t = 1 - alpha_t^2, hence closed forms for what the base class derives."""

    def variance_dt(self, t: Tensor) -> Tensor:
        return -2 * self.alpha(t) * self.alpha_dt(t)

    def time_score_variance(self, t: Tensor, c: float | None = None) -> Tensor:
        moment = self.c if c is None else c
        v = self.variance(t)
        spread = 2 * self.alpha(t).square() + moment * v
        return (self.alpha_dt(t) / v).square() * spread

    def clock(self, t: Tensor) -> Tensor:
        """Arc length measured from alpha = 0, in closed form."""
        return arc_length(self.alpha(t), self.variance(t), self.c)


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

    def __init__(self, beta_min: float = 0.1, beta_max: float = 20.0, c: float = 1.0) -> None:
        super().__init__(c)
        if not 0 < beta_min <= beta_max < math.inf:
            raise UserError(
                f"VPPath needs 0 < beta_min <= beta_max, both finite, not {beta_min}, {beta_max}"
            )
        self.beta_min, self.beta_max = beta_min, beta_max

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


class SchrodingerBridgePath(GaussianPath):
    """Two sided: mean (1 - t) x0 + t x1, v_t = sigma^2 t (1 - t), any p0 and p1; z = (x0, x1).

    ``c`` is E||x1 - x0||^2 / D. With sigma = 0 points can be drawn but no conditional quantity
    exists.
    """

    def __init__(self, sigma: float = 1.0, c: float = 1.0) -> None:
        super().__init__(c)
        if not 0 <= sigma < math.inf:
            raise UserError(f"SchrodingerBridgePath needs a finite sigma >= 0, not {sigma}")
        self.sigma = float(sigma)

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, noise: Tensor) -> PathSample:
        """x_t for endpoints (B, *), ``t`` (B,) and standard normal ``noise`` (B, *)."""
        return self.complete(x0, x1, t, eps=noise)

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def variance(self, t: Tensor) -> Tensor:
        return self.sigma**2 * t * (1 - t)

    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        return sample.x0, sample.x1 - sample.x0

    def interval(self, eps: float) -> tuple[float, float]:
        return eps, 1.0 - eps

    def alpha_dt(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def variance_dt(self, t: Tensor) -> Tensor:
        return self.sigma**2 * (1 - 2 * t)

    def velocity(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        """As the base class says, for x0 ~ N(0, I) drawn independently of x1."""
        n, n_dt = (1 - t).square() + self.variance(t), self.variance_dt(t) - 2 * (1 - t)
        return self._velocity(x, score, t, n, n_dt)

    def clock(self, t: Tensor) -> Tensor:
        """Arc length measured from t = 1/2, in closed form; infinite at both ends.

        Raises:
            UserError: for sigma = 0.
        """
        if self.sigma == 0:
            raise UserError("a Schrodinger bridge with sigma = 0 has no clock: use sigma > 0")
        return arc_length(2 * t - 1, 4 * t * (1 - t), self.c / self.sigma**2)


PATHS: dict[str, type[GaussianPath]] = {
    "linear_vp": LinearVPPath,
    "vp": VPPath,
    "schrodinger_bridge": SchrodingerBridgePath,
}
