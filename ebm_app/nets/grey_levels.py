r"""The posterior of quantised data: the Gaussian of ``moments`` restricted to the grey levels.

Data with L levels lie at the centres c_k = -1 + (2k + 1) / L of their cells. A network that
predicts the Gaussian posterior N(d, s^2) of x1 (see ``parametrisation``) would have to learn to
round. Restricting it to the levels is a closed form,

    p(k | x) proportional to a_k exp(-(c_k - d)^2 / (2 s^2)),

whose mean and variance take the place of d and s^2 in every formula. Levels 0 to L - 1 have
a_k = 1. The grid continues beyond black and white with a_k = g(s), which rises smoothly from 0 at
s = 0.7 bins to 1 at s = 1.4 bins: a narrow posterior knows the range of the data, and a wide one
is N(d, s^2) itself, since the sum over an unbounded grid equals the integral up to
exp(-2 pi^2 s^2 / bin^2).
"""

import torch
from torch import Tensor

#: Standard deviations, in bins, between which the levels beyond black and white fade in
NARROW, WIDE = 0.7, 1.4
#: Levels summed on each side of the nearest one, and max distance of that one from the range
REACH, OUTSIDE = 10, 8
#: Variance in squared bins that is added: the deviance of CTSM-m is infinite for a variance of 0
FLOOR = 1e-6


def restrict_to_levels(mean: Tensor, variance: Tensor, num_levels: int) -> tuple[Tensor, Tensor]:
    """Restrict N(mean, variance) to the grey levels.

    Args:
        mean, variance: moments of x1 in the ambient space, of any shape.
        num_levels: L, the number of grey levels.

    Returns:
        E[c_k] - mean and Var[c_k], of the same shape. Where the standard deviation exceeds 1.4
        bins, these are 0 and ``variance``.

    >>> shift, variance = restrict_to_levels(torch.tensor([0.4]), torch.tensor([1e-6]), 2)
    >>> shift, variance  # the nearest of the levels -0.5 and 0.5
    (tensor([0.1000]), tensor([1.0000e-06]))
    """
    bin_width = 2 / num_levels
    place = ((mean + 1) / bin_width - 0.5).clamp(
        -OUTSIDE - REACH, num_levels - 1 + OUTSIDE + REACH
    )
    spread = variance.clamp(min=1e-30).sqrt() / bin_width
    is_wide = spread > WIDE
    narrow = torch.where(is_wide, WIDE, spread).clamp(min=0.02)
    share = ((narrow - NARROW) / (WIDE - NARROW)).clamp(0, 1)
    outside = share.square() * (3 - 2 * share)
    nearest = place.detach().round().clamp(-OUTSIDE, num_levels - 1 + OUTSIDE)
    steps = torch.arange(-REACH, REACH + 1, dtype=mean.dtype, device=mean.device)
    levels = nearest[..., None] + steps
    offset = levels - place[..., None]
    inside = (levels >= 0) & (levels <= num_levels - 1)
    prior = torch.where(inside, 1.0, outside[..., None])
    logits = -0.5 * (offset / narrow[..., None]).square()
    logits = torch.where(prior > 0, logits + prior.clamp(min=1e-30).log(), -torch.inf)
    weights = logits.softmax(-1)
    shift = (weights * offset).sum(-1)
    second = (weights * (offset - shift[..., None]).square()).sum(-1) + FLOOR
    return (
        torch.where(is_wide, 0.0, shift * bin_width),
        torch.where(is_wide, variance, second * bin_width**2),
    )
