r"""Conditional Gaussian probability paths from the reference (t = 0) to the data (t = 1).

A path conditions on its endpoints z = (x0, x1) and is Gaussian with isotropic noise,

    p_t(x | z) = N(x; base(z) + alpha_t delta(z), v_t I),
    x_t = base + alpha_t delta + sqrt(v_t) eps.

A subclass states alpha_t and v_t; everything else is derived here, once, by differentiation, and a
subclass may override a derived quantity by its closed form. With c = E||delta||^2 / D, per
component,

    conditional time score = (v'/2v)(eps^2 - 1) + (alpha'/sqrt(v)) delta eps
    its variance           = (v'/v)^2 / 2 + alpha'^2 c / v
    arc length tau(t)      = integral of the square root of that variance (Fisher-Rao).

Times are float64 tensors of shape (B,) or (); states have shape (B, *). Densities are in nats.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 5 and appendix B
(arXiv:2502.02300).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Positive, check_argument
from ebm_app.utils.tensors import (
    derivative,
    expand_like,
    standard_normal_log_density,
)


class PathSample(NamedTuple):
    """A draw from a path: reference ``x0``, data ``x1``, point ``xt`` and residual ``eps`` of
    shape (B, *), time ``t`` of shape (B,)."""

    x0: Tensor
    x1: Tensor
    t: Tensor
    eps: Tensor
    xt: Tensor


def arc_length_integral(s: Tensor, one_minus_s2: Tensor, k: float) -> Tensor:
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
        self.c = check_argument(Positive, "c", c)

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
        return derivative(self.alpha, t)

    def variance_dt(self, t: Tensor) -> Tensor:
        """d v_t / dt."""
        return derivative(self.variance, t)

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, noise: Tensor | None = None) -> PathSample:
        """A point of the path at ``t`` (B,) between ``x0`` and ``x1`` (B, *).

        Args:
            noise: standard normal (B, *), independent of both ends. A path from N(0, I) takes x0
                for it and needs no other.
        """
        return self.complete(x0, x1, t, eps=noise)

    def mean(self, sample: PathSample) -> Tensor:
        """Conditional mean base + alpha_t delta, (B, *)."""
        base, delta = self.endpoints(sample)
        return base + expand_like(self.alpha(sample.t), delta) * delta

    def complete(self, x0: Tensor, x1: Tensor, t: Tensor, eps: Tensor) -> PathSample:
        """The sample whose residual is ``eps``: x_t = mean + sqrt(v_t) eps."""
        draft = PathSample(x0, x1, t, eps, x1)
        return draft._replace(xt=self.mean(draft) + expand_like(self.variance(t).sqrt(), x1) * eps)

    def conditional_components(self, sample: PathSample) -> Tensor:
        """d/dt log p_t(x_i | z) for every component i, in nats, which sum to the conditional time
        score: (B, *)."""
        _, delta = self.endpoints(sample)
        v = self.variance(sample.t)
        spread = expand_like(self.variance_dt(sample.t) / (2 * v), delta)
        drift = expand_like(self.alpha_dt(sample.t) / v.sqrt(), delta)
        return spread * (sample.eps.square() - 1) + drift * delta * sample.eps

    def conditional_score(self, sample: PathSample) -> Tensor:
        """Stein score grad_x log p_t(x | z) = -eps / sqrt(v_t): (B, *)."""
        return -sample.eps / expand_like(self.variance(sample.t).sqrt(), sample.eps)

    def check_reference(self) -> None:
        """Refuse a path whose reference density is not N(0, I).

        Raises:
            UserError: unless the path starts from N(0, I).
        """
        raise UserError(
            f"{type(self).__name__} has no known reference density: use a path from noise"
        )

    def reference_log_density(self, x: Tensor) -> Tensor:
        """log p_0(x) = log N(x; 0, I) per component, in nats: (B, *) -> (B, *) float64."""
        self.check_reference()
        return standard_normal_log_density(x.double())

    def score_skip(self, t: Tensor) -> Tensor:
        """a_t in the parametrisation score = a_t x + b_t h of a Stein head's output h."""
        return torch.zeros_like(t)

    def score_gain(self, t: Tensor) -> Tensor:
        """b_t in the parametrisation score = a_t x + b_t h: h then has variance near 1."""
        return -self.variance(t).rsqrt()

    def time_score_variance(self, t: Tensor) -> Tensor:
        """Variance of one component of the conditional time score under p_t(x, z), in nats^2 /
        t^2."""
        v = self.variance(t)
        return (self.variance_dt(t) / v).square() / 2 + self.alpha_dt(t).square() * self.c / v

    def log_snr(self, t: Tensor) -> Tensor:
        """Log signal-to-noise ratio log(c alpha_t^2 / v_t), which grows in t: (B,) -> (B,)."""
        self.check_reference()
        return (self.c * self.alpha(t).square() / self.variance(t)).log()

    def log_snr_inverse(self, ratio: Tensor) -> Tensor:
        """The time t with log_snr(t) = ``ratio``: (B,) -> (B,)."""
        return _inverse(self.log_snr, ratio)

    def velocity(self, x: Tensor, score: Tensor, t: Tensor) -> Tensor:
        r"""Probability-flow velocity of the marginals from the Stein score, for alpha_t > 0:
        (B, *).

            u_t(x) = (alpha'/alpha) x + ((alpha'/alpha) v - v'/2) score.

        Source: Song et al. 2021, arXiv:2011.13456, eq. 13, written for x_t = alpha_t x1 +
        sqrt(v_t) noise.
        """
        self.check_reference()
        v, v_dt = self.variance(t), self.variance_dt(t)
        drift = self.alpha_dt(t) / self.alpha(t)
        return expand_like(drift, x) * x + expand_like(drift * v - v_dt / 2, x) * score

    def arc_length(self, t: Tensor) -> Tensor:
        """Fisher-Rao arc length per dimension, measured from t = 1/2, for t < 1: (B,) -> (B,).

        Integrated by 128 Gauss-Legendre nodes in u = logit(t), where the rate is smooth at both
        ends; t = 0 is taken as 2e-16.
        """
        u = torch.logit(t).clamp_min(-_MAX_LOGIT)[..., None]
        nodes, weights = (torch.as_tensor(a, device=t.device) for a in _LOGIT_RULE)
        time = torch.sigmoid(u * (1 + nodes) / 2)
        rate = self.time_score_variance(time).sqrt() * time * (1 - time)
        return (rate * weights * u / 2).sum(-1)

    def arc_length_inverse(self, tau: Tensor) -> Tensor:
        """The time t with arc length(t) = ``tau``, to the precision of float64: (B,) -> (B,).

        A arc length outside that of (0, 1) gives the time next to 0 or 1.

        >>> from ebm_app.paths import LinearVPPath
        >>> path = LinearVPPath()
        >>> times = torch.tensor([0.25, 0.5, 0.999], dtype=torch.float64)
        >>> again = path.arc_length_inverse(path.arc_length(times))
        >>> bool(torch.allclose(again, times, rtol=1e-12))
        True
        """
        return _inverse(self.arc_length, tau)


def _inverse(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """The times in (0, 1) at which a growing function has ``values``, by their logit."""
    from scipy.optimize.elementwise import find_root  # half a second to import

    limit = torch.tensor([-_MAX_LOGIT, _MAX_LOGIT], dtype=torch.float64)
    target = values.cpu().clamp(*function(torch.sigmoid(limit))).numpy()

    def excess(logit: np.ndarray, target: np.ndarray) -> np.ndarray:
        return function(torch.sigmoid(torch.from_numpy(logit))).numpy() - target

    ends = (np.full_like(target, -_MAX_LOGIT), np.full_like(target, _MAX_LOGIT))
    logit = find_root(excess, ends, args=(target,)).x
    return torch.sigmoid(torch.as_tensor(logit, device=values.device))


_MAX_LOGIT = 36.0  # sigmoid(36) is the float64 next to 1
_LOGIT_RULE = np.polynomial.legendre.leggauss(128)
