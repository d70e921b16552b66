r"""Predictions of a network, from which the terms of the time score are computed.

``moments`` computes the time score in closed form from posterior moments. On a path from noise,
with second moment c of the data and m = c alpha^2 + v, a Stein head h gives the posterior means

    e = E[eps | x] = sqrt(v) x / m - sqrt(c) alpha h / sqrt(m),
    d = E[x1 | x]  = c alpha x / m + sqrt(c v / m) h.

For given x, eps and x1 are affine functions of each other. The posterior variance w of the target
of h therefore determines Var[eps | x] = c alpha^2 w / m and Cov[x1, eps | x] =
-c alpha sqrt(v) w / m, and thereby the posterior mean of the conditional terms, the regression
target of CTSM-v:

    E[d/dt log p_t(x_i | x1) | x] = (v' / 2v) (e^2 + Var[eps | x] - 1)
                                    + (alpha' / sqrt(v)) (d e + Cov[x1, eps | x]).

The network thus predicts a mean and a variance, both of order 1 at all times, instead of squares
of its input. h = 0 and w = 1 are exact for data N(0, c I).

``levels`` restricts the posterior N(d, c v w / m) of x1 to the grey levels of the data (see
``grey_levels``). The mean and variance of the restricted posterior determine h and w.

Source of the conditional terms: paper, section 5 (arXiv:2502.02300).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from ebm_app.nets.grey_levels import restrict_to_levels
from ebm_app.paths import GaussianPath, require_one_sided
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import expand_like


class Prediction(NamedTuple):
    """Function from the output of a network to the terms of the time score.

    Attributes:
        components: (path, x (B, *), t (B,), out, head, num_levels) -> terms (B, *) in nats per
            unit of t, posterior variance w (B, *) or None, and Stein head. In the arguments,
            ``head`` has the Stein head channels of the output, or 0 channels, and ``out`` the
            other channels.
        needs_head: whether it needs a Stein head and a path from noise; if so, it predicts w.
    """

    components: Callable[..., tuple[Tensor, Tensor | None, Tensor]]
    needs_head: bool = False

    def check(self, path: GaussianPath, has_head: bool) -> None:
        """Raise a UserError for an unsupported path or network."""
        if self.needs_head:
            require_one_sided(path)
        if self.needs_head and not has_head:
            raise UserError(
                "This prediction needs a Stein head. Use stein_factor 1, or prediction normalised."
            )


def moments(
    path: GaussianPath, x: Tensor, t: Tensor, out: Tensor, head: Tensor, num_levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms in closed form, with w = softplus(output) / log 2."""
    w = functional.softplus(out) / math.log(2)
    return _terms(path, x, t, head, w), w, head


def levels(
    path: GaussianPath, x: Tensor, t: Tensor, out: Tensor, head: Tensor, num_levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms for the posterior restricted to grey levels, with unrestricted variance
    w = exp(2 output)."""
    alpha, v, c, m = path.alpha(t), path.variance(t), path.c, path.marginal_variance(t)
    gain = expand_like((c * v / m).sqrt(), x)
    d = expand_like(c * alpha / m, x) * x + gain * head
    shift, variance = restrict_to_levels(d, gain.square() * (2 * out).exp(), num_levels)
    w, head = variance / gain.square(), head + shift / gain
    return _terms(path, x, t, head, w), w, head


def _terms(path: GaussianPath, x: Tensor, t: Tensor, head: Tensor, w: Tensor) -> Tensor:
    """Return the terms of the time score from the Stein head h and posterior variance w."""
    if w.shape != x.shape:
        raise ValueError(f"Expected a variance of shape {tuple(x.shape)}, got {tuple(w.shape)}.")
    alpha, v, c = path.alpha(t), path.variance(t), path.c
    m = path.marginal_variance(t)
    spread, drift = path.variance_dt(t) / (2 * v), path.alpha_dt(t) / v.sqrt()
    e = _sum((v.sqrt() / m, x), (-math.sqrt(c) * alpha / m.sqrt(), head))
    d = _sum((c * alpha / m, x), ((c * v / m).sqrt(), head))
    return _sum((spread, e.square() - 1), (drift, d * e), (path.variance_gain(t), w))


def _sum(*terms: tuple[Tensor, Tensor]) -> Tensor:
    """Return the sum of coefficients (B,) times tensors (B, *)."""
    return sum(expand_like(coefficient, tensor) * tensor for coefficient, tensor in terms)


#: Prediction of energy networks (see ``energy``), which is not in ``PREDICTIONS``
ENERGY = "level_energy"
PREDICTIONS: dict[str, Prediction] = {
    # the terms themselves, for data with regular marginals at t = 1
    "raw": Prediction(lambda path, x, t, out, head, num_levels: (out, None, head)),
    # in units of their standard deviation along the path (paper, appendix F.5)
    "normalised": Prediction(
        lambda path, x, t, out, head, num_levels: (
            out * expand_like(path.time_score_variance(t).sqrt(), out),
            None,
            head,
        )
    ),
    "moments": Prediction(moments, needs_head=True),
    "levels": Prediction(levels, needs_head=True),
}
