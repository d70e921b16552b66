r"""Conditional Gaussian probability paths from the reference (t = 0) to the data (t = 1).

A path conditions on its endpoints z = (x0, x1) and is Gaussian with isotropic noise,

    p_t(x | z) = N(x; base(z) + alpha_t delta(z), v_t I),
    x_t = base + alpha_t delta + sqrt(v_t) eps.

A subclass defines alpha_t, v_t and the two ends. All other quantities are derived here by
differentiation; a subclass may override a derived quantity by its closed form. With
c = E||delta||^2 / D, per dimension,

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
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.fields import Positive, check_argument
from ebm_app.utils.quadrature import Rule, rule_on
from ebm_app.utils.tensors import derivative, expand_like

#: sigmoid(36) is the largest float64 below 1
_MAX_LOGIT = 36.0
_LOGIT_RULE = np.polynomial.legendre.leggauss(128)


class PathSample(NamedTuple):
    """Draw from a path: time t (B,); reference x0, data x1, noise eps and point xt, (B, *)
    each."""

    x0: Tensor
    x1: Tensor
    t: Tensor
    eps: Tensor
    xt: Tensor


class GaussianPath(ABC):
    """Conditional Gaussian path. The equations are in the module docstring.

    Args:
        c: assumed second moment of the data per dimension, E||delta||^2 / D. The paper uses 1.
    """

    def __init__(self, c: float = 1.0) -> None:
        self.c = check_argument(Positive, "c", c)

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Return the coefficient alpha_t of delta(z)."""

    @abstractmethod
    def variance(self, t: Tensor) -> Tensor:
        """Return the conditional variance v_t per dimension."""

    @abstractmethod
    def endpoints(self, sample: PathSample) -> tuple[Tensor, Tensor]:
        """Return (base, delta), each (B, *)."""

    @abstractmethod
    def interval(self, t_margin: float) -> tuple[float, float]:
        """Return the first and the last time, a margin ``t_margin`` away from degenerate ends."""

    def alpha_dt(self, t: Tensor) -> Tensor:
        """Return d alpha_t / dt."""
        return derivative(self.alpha, t)

    def variance_dt(self, t: Tensor) -> Tensor:
        """Return d v_t / dt."""
        return derivative(self.variance, t)

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor, noise: Tensor | None = None) -> PathSample:
        """Draw a point of the path at ``t`` (B,) between ``x0`` and ``x1`` (B, *), with standard
        normal ``noise`` (B, *): x_t = mean + sqrt(v_t) noise. A path from N(0, I) uses x0 as the
        noise."""
        draft = PathSample(x0, x1, t, noise, x1)
        spread = expand_like(self.variance(t).sqrt(), x1)
        return draft._replace(xt=self.mean(draft) + spread * noise)

    def mean(self, sample: PathSample) -> Tensor:
        """Return the conditional mean base + alpha_t delta, (B, *)."""
        base, delta = self.endpoints(sample)
        return base + expand_like(self.alpha(sample.t), delta) * delta

    def conditional_components(self, sample: PathSample) -> Tensor:
        """Return the per-dimension terms d/dt log p_t(x_i | z) of the conditional time score, in
        nats per unit of t: (B, *)."""
        _, delta = self.endpoints(sample)
        v = self.variance(sample.t)
        spread = expand_like(self.variance_dt(sample.t) / (2 * v), delta)
        drift = expand_like(self.alpha_dt(sample.t) / v.sqrt(), delta)
        return spread * (sample.eps.square() - 1) + drift * delta * sample.eps

    def conditional_score(self, sample: PathSample) -> Tensor:
        """Return the Stein score grad_x log p_t(x | z) = -eps / sqrt(v_t): (B, *)."""
        return -sample.eps / expand_like(self.variance(sample.t).sqrt(), sample.eps)

    def score_skip(self, t: Tensor) -> Tensor:
        """Return a_t of the parametrisation score = a_t x + b_t h, where h is the output of a
        Stein head."""
        return torch.zeros_like(t)

    def score_gain(self, t: Tensor) -> Tensor:
        """Return b_t of score = a_t x + b_t h, which gives h a variance near 1."""
        return -self.variance(t).rsqrt()

    def time_score_variance(self, t: Tensor) -> Tensor:
        """Return the variance of the conditional time score per dimension, in nats^2 / t^2."""
        v = self.variance(t)
        return (self.variance_dt(t) / v).square() / 2 + self.alpha_dt(t).square() * self.c / v

    def arc_length(self, t: Tensor) -> Tensor:
        """Return the Fisher-Rao arc length per dimension from t = 1/2, for t < 1: (B,) -> (B,).

        The default integrates with 128 Gauss-Legendre nodes in u = logit(t), where the rate is
        smooth at both ends. It replaces t = 0 by 2e-16.
        """
        u = torch.logit(t).clamp_min(-_MAX_LOGIT)[..., None]
        nodes, weights = (torch.as_tensor(a, device=t.device) for a in _LOGIT_RULE)
        time = torch.sigmoid(u * (1 + nodes) / 2)
        rate = self.time_score_variance(time).sqrt() * time * (1 - time)
        return (rate * weights * u / 2).sum(-1)

    def arc_length_inverse(self, tau: Tensor) -> Tensor:
        """Return the time t with arc_length(t) = ``tau``, see ``invert``: (B,) -> (B,).

        >>> from ebm_app.paths import LinearVPPath
        >>> path = LinearVPPath()
        >>> times = torch.tensor([0.25, 0.5, 0.999], dtype=torch.float64)
        >>> again = path.arc_length_inverse(path.arc_length(times))
        >>> bool(torch.allclose(again, times, rtol=1e-12))
        True
        """
        return invert(self.arc_length, tau)


def invert(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return the times t in (0, 1) with function(t) = ``values``, to the precision of float64.

    Args:
        function: increasing, (B,) -> (B,).
        values: (B,). Values outside the range of the function give the time closest to 0 or 1.
    """
    from scipy.optimize.elementwise import find_root  # takes half a second to import

    limit = torch.tensor([-_MAX_LOGIT, _MAX_LOGIT], dtype=torch.float64, device="cpu")
    target = values.cpu().clamp(*function(torch.sigmoid(limit))).numpy()

    def excess(logit: np.ndarray, target: np.ndarray) -> np.ndarray:
        return function(torch.sigmoid(torch.from_numpy(logit))).numpy() - target

    ends = (np.full_like(target, -_MAX_LOGIT), np.full_like(target, _MAX_LOGIT))
    logit = find_root(excess, ends, args=(target,)).x
    return torch.sigmoid(torch.as_tensor(logit, device=values.device))


class Schedule(NamedTuple):
    """Increasing function ``tau`` of time on a path, (path, times (B,)) -> (B,) float64. Steps of
    a probability flow and temperatures (times) of annealed chains are evenly spaced in tau."""

    tau: Callable[[GaussianPath, Tensor], Tensor]

    def rate(self, path: GaussianPath, t: Tensor) -> Tensor:
        """Return d tau / dt: (B,) -> (B,)."""
        return derivative(partial(self.tau, path), t)

    def times(self, path: GaussianPath, start: float, end: float, num_steps: int) -> Tensor:
        """Return times (num_steps + 1,) float64 from ``start`` to ``end``, both included. tau
        must be finite at both.

        >>> from ebm_app.paths import LinearVPPath
        >>> SCHEDULES["linear"].times(LinearVPPath(), 0.0, 1.0, 4).round(decimals=12).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        ends = self.tau(path, torch.tensor([start, end], dtype=torch.float64))
        values = torch.linspace(*ends.tolist(), num_steps + 1, dtype=torch.float64)
        times = invert(partial(self.tau, path), values)
        times[0], times[-1] = start, end
        return times


#: Fisher-Rao arc length: time score and Stein score are smooth in it at both ends
ARC_LENGTH = Schedule(lambda path, t: path.arc_length(t))
#: Puts more steps at the noise levels that determine the content of an image
LOG_SNR = Schedule(lambda path, t: path.log_snr(t))
#: Evenly spaced in t, as in the paper (appendix F.6)
LINEAR = Schedule(lambda path, t: t)

SCHEDULES = {"arc_length": ARC_LENGTH, "log_snr": LOG_SNR, "linear": LINEAR}


@lru_cache(maxsize=1024)
@torch.inference_mode(False)  # cached tensors may be used under autograd
def arc_length_rule(
    path: GaussianPath,
    whole: tuple[float, float],
    interval: tuple[float, float],
    num_nodes: int,
    min_nodes: int,
) -> Rule:
    """Return a Gauss-Legendre rule in the arc length tau on ``interval``. Nodes are times t, and
    weights include dt / d tau.

    It has min_nodes + s (num_nodes - min_nodes) nodes, where s is the fraction of the arc length
    of ``whole`` in ``interval``. Cached, because inverting the arc length costs as much as a
    network.
    """
    whole_ends, ends = (
        path.arc_length(torch.tensor(pair, dtype=torch.float64)) for pair in (whole, interval)
    )
    share = ((ends[1] - ends[0]) / (whole_ends[1] - whole_ends[0])).abs().item()
    rule = rule_on(
        math.ceil(min_nodes + share * (num_nodes - min_nodes)), ends[0].item(), ends[1].item()
    )
    times = path.arc_length_inverse(rule.nodes)
    dt = path.time_score_variance(times).rsqrt()
    return Rule(times, rule.weights * dt, rule.coarse_weights * dt)
