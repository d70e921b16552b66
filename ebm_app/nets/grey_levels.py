r"""Posterior of quantised data: the Gaussian of ``moments`` restricted to the grey levels.

Data with L levels are at the cell centres c_k = -1 + (2k + 1) / L. A network that predicts the
Gaussian posterior N(d, s^2) of x1 (see ``parametrisation``) would have to learn to round. Instead,
the posterior is restricted to the levels in closed form,

    p(k | x) proportional to a_k exp(-(c_k - d)^2 / (2 s^2)),

and its mean and variance replace d and s^2 in all formulas. Levels 0 to L - 1 have a_k = 1. Beyond
black and white, the grid continues with a_k = g(s), which rises smoothly from 0 at s = 0.7 bins to
1 at s = 1.4 bins. A narrow posterior is thus restricted to the range of the data. A wide posterior
remains N(d, s^2), because the sum over an unbounded grid equals the integral up to
exp(-2 pi^2 s^2 / bin^2).

The sums over levels dominate the cost. They run in chunks without a graph, and their derivatives
follow from the central moments mu_3 and mu_4, for example d Var / d d = mu_3 / s^2.
"""

from typing import Any

import torch
from torch import Tensor

#: Standard deviations in bins between which the weight of out-of-range levels rises from 0 to 1
NARROW, WIDE = 0.7, 1.4
#: Levels summed on each side of the nearest level: about 6 standard deviations at most
REACH = 8
#: Added variance in squared bins, because the Poisson deviance is infinite at variance 0
FLOOR = 1e-6
#: Min log weight; smaller weights are negligible, and exp is slow when it underflows
MIN_LOG_WEIGHT = -80.0
#: Elements per chunk on a CPU, to fit its cache
CHUNK = 2**13


def restrict_to_levels(mean: Tensor, variance: Tensor, num_levels: int) -> tuple[Tensor, Tensor]:
    """Restrict N(mean, variance) to the grey levels.

    Args:
        mean, variance: moments of x1 in the ambient space, of any shape.
        num_levels: number of grey levels L.

    Returns:
        E[c_k] - mean and Var[c_k], of the same shape. If the standard deviation exceeds 1.4 bins,
        these are 0 and ``variance``.

    >>> shift, variance = restrict_to_levels(torch.tensor([0.4]), torch.tensor([1e-6]), 2)
    >>> shift, variance  # the nearest level of -0.5 and 0.5
    (tensor([0.1000]), tensor([1.0000e-06]))
    """
    bin_width = 2 / num_levels
    place = ((mean + 1) / bin_width - 0.5).clamp(-2 * REACH, num_levels - 1 + 2 * REACH)
    spread = variance.clamp(min=1e-30).sqrt() / bin_width
    is_wide = spread > WIDE
    narrow = torch.where(is_wide, WIDE, spread).clamp(min=0.02)
    moments = restricted_moments if torch.compiler.is_compiling() else RestrictedMoments.apply
    shift, second = (
        moment.view_as(mean) for moment in moments(place.flatten(), narrow.flatten(), num_levels)
    )
    return (
        torch.where(is_wide, 0.0, shift * bin_width),
        torch.where(is_wide, variance, second * bin_width**2),
    )


class RestrictedMoments(torch.autograd.Function):
    """Autograd function of ``restricted_moments`` with derivatives in closed form."""

    @staticmethod
    def forward(ctx: Any, place: Tensor, spread: Tensor, num_levels: int) -> tuple[Tensor, ...]:
        size = CHUNK if place.device.type == "cpu" else max(1, len(place))
        chunks = zip(place.split(size), spread.split(size), strict=True)
        columns = zip(*(_with_derivatives(*chunk, num_levels) for chunk in chunks), strict=True)
        shift, variance, *derivatives = map(torch.cat, columns)
        ctx.num_levels = num_levels
        ctx.save_for_backward(place, spread, *derivatives)
        return shift, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        place, spread, *derivatives = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            moments = restricted_moments(place, spread, ctx.num_levels)
            inputs = (place, spread)
            return *torch.autograd.grad(moments, inputs, gradients, create_graph=True), None
        (of_shift, of_variance), (a, b, c, d) = gradients, derivatives
        return of_shift * a + of_variance * c, of_shift * b + of_variance * d, None


def level_log_prob(levels: Tensor, mean: Tensor, variance: Tensor, num_levels: int) -> Tensor:
    """Return log p(k | x) in nats of the levels k, for 0 to L - 1, given the moments of x1.

    d is the mean. s^2 is the variance, except below half a bin, where a Gaussian restricted to the
    levels has a smaller variance: if x1 is at a level, about 2 exp(-bin^2 / (2 s^2)) squared bins.

    Args:
        levels: k, (B, *) integers. mean, variance: posterior moments of x1, (B, *).

    Returns:
        (B, *) float64.

    >>> mean, variance = torch.tensor([0.4]), torch.tensor([1e-6])
    >>> level_log_prob(torch.tensor([1]), mean, variance, 2).exp()  # the levels are -0.5 and 0.5
    tensor([1.0000], dtype=torch.float64)
    """
    steps = torch.arange(num_levels).to(mean)
    place = (mean + 1) * (num_levels / 2) - 0.5
    squares = (variance * (num_levels / 2) ** 2).clamp(min=1e-30)
    squares = torch.maximum(squares, -0.5 / (squares / 2).clamp(max=0.5).log())
    columns = (column.flatten()[:, None] for column in (levels.long(), place, squares))
    chunks = zip(*(column.split(CHUNK) for column in columns), strict=True)
    values = [
        (-(steps - d).square() / (2 * s2)).log_softmax(1).gather(1, k) for k, d, s2 in chunks
    ]
    return torch.cat(values).view_as(mean).double()


def restricted_moments(place: Tensor, spread: Tensor, num_levels: int) -> tuple[Tensor, Tensor]:
    """Return E[k] - place and Var[k] of the restricted posterior, in bins.

    Args:
        place: mean d in bins from level 0, (n,).
        spread: standard deviation s in bins, (n,).
    """
    distance, _, sums, _ = _power_sums(place, spread, num_levels, 3)
    first, second = (power / sums[0] for power in sums[1:])
    return first + distance, second - first.square() + FLOOR


def _with_derivatives(place: Tensor, spread: Tensor, num_levels: int) -> tuple[Tensor, ...]:
    """Return both moments, and the derivatives of the first and then the second moment with
    respect to ``place`` and ``spread``."""
    distance, slope, sums, outer = _power_sums(place, spread, num_levels, 5)
    first, r2, r3, r4 = (power / sums[0] for power in sums[1:])
    q0, q1, q2 = (power / sums[0] for power in outer)
    shift, square = first + distance, first.square()
    second = r2 - square
    third = r3 - 3 * first * r2 + 2 * first * square
    fourth = r4 - 4 * first * r3 + 6 * square * r2 - 3 * square.square()
    precision = spread.square().reciprocal()
    return (
        shift,
        second + FLOOR,
        second * precision - 1,
        (third + 2 * shift * second) * precision / spread + slope * (q1 - first * q0),
        third * precision,
        (fourth - second.square() + 2 * shift * third) * precision / spread
        + slope * (q2 - 2 * first * q1 + (square - second) * q0),
    )


def _power_sums(
    place: Tensor, spread: Tensor, num_levels: int, num_powers: int
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Sum a_k exp(-(k - d)^2 / (2 s^2)) (k - n)^p over the levels k around the nearest level n.

    Returns:
        The distance n - d, d log g / ds, the sums for p = 0, 1, ..., and the sums for p = 0, 1, 2
        over out-of-range levels, below black and above white, (n,) each.
    """
    share = ((spread - NARROW) / (WIDE - NARROW)).clamp(0, 1)
    fades = (share > 0) & (share < 1)
    safe = torch.where(fades, share, 0.5)
    slope = torch.where(fades, 6 * (1 - safe) / (safe * (3 - 2 * safe) * (WIDE - NARROW)), 0.0)
    log_g = torch.where(share < 1, (safe.square() * (3 - 2 * safe)).log(), 0.0)
    log_g = torch.where(share > 0, log_g, -1e30)
    nearest = place.detach().round()
    # clamp to valid levels where out-of-range levels have zero weight
    nearest = torch.where(share > 0, nearest, nearest.clamp(0, num_levels - 1))
    distance, middle = nearest - place, (num_levels - 1) / 2
    steps = torch.arange(-REACH, REACH + 1, dtype=place.dtype, device=place.device)[:, None]
    rate = -0.5 / spread.square()
    is_outer = (nearest - middle + steps).abs_().sub_(middle).clamp_(0, 1)
    logits = torch.addcmul(steps.square() * rate, steps, 2 * distance * rate)
    weights = torch.addcmul(logits, is_outer, log_g).clamp(min=MIN_LOG_WEIGHT).exp()
    outer = _moments(weights * is_outer, steps, 3) if num_powers > 3 else []
    return distance, slope, _moments(weights, steps, num_powers), outer


def _moments(weights: Tensor, steps: Tensor, num: int) -> list[Tensor]:
    """Return the sums (n,) of weights (k, n) times powers 0, ..., num - 1 of the steps."""
    sums, weights = [weights.sum(0)], weights * steps
    for _ in range(num - 2):
        sums.append(weights.sum(0))
        weights.mul_(steps)
    return [*sums, weights.sum(0)]
