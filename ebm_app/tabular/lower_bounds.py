r"""A bound of mutual information from any log ratio T, at pairs it was not learned from.

    Donsker-Varadhan:  I >= E_{p(x,y)} T - log E_{p(x)p(y)} exp T

It holds with equality for T = log p(x, y) / (p(x) p(y)), of which exp has the mean 1 over pairs of
different rows. The mean of T alone is no bound.

Source: Poole et al. 2019, arXiv:1905.06922, section 2.1.
"""

from typing import NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ebm_app.utils.tensors import log_mean_exp


class PairRatios(NamedTuple):
    """Log ratios at rows left out, float64: ``joint`` (m,), and ``apart`` (S, m), where row s has
    x_i with y_{i + shifts[s]}, counted round."""

    joint: Tensor
    apart: Tensor
    shifts: list[int]


def log_normaliser(ratios: PairRatios) -> float:
    """log E_{p(x)p(y)} exp T, in nats: 0 for the exact ratio."""
    return log_mean_exp(ratios.apart.flatten()).item()


def donsker_varadhan(ratios: PairRatios) -> float:
    """The Donsker-Varadhan bound, in nats."""
    return ratios.joint.mean().item() - log_normaliser(ratios)


def influences(ratios: PairRatios) -> Tensor:
    """What every row moves the Donsker-Varadhan bound by, times m: (m,), of mean 0.

    A row enters the first term once, and the second as x_i and as y_i.
    """
    weight = (ratios.apart - log_normaliser(ratios)).exp()
    as_x = weight.mean(0)
    as_y = torch.stack([part.roll(s) for part, s in zip(weight, ratios.shifts, strict=True)])
    return ratios.joint - ratios.joint.mean() - (as_x - 1) - (as_y.mean(0) - 1)


def weighted(parts: PairRatios, weights: Tensor) -> PairRatios:
    """The sum of several log ratios, joint (M, m) and apart (M, S, m), with weights (M,)."""
    joint, apart = (torch.tensordot(weights, part, 1) for part in parts[:2])
    return PairRatios(joint, apart, parts.shifts)


def best_weights(parts: PairRatios) -> Tensor:
    """The shares (M,) of one or two log ratios, summing to 1, of which the sum has the largest
    bound, which is concave in them."""
    if len(parts.joint) == 1:
        return torch.ones(1, dtype=torch.float64)

    def shares(second: float) -> Tensor:
        return torch.tensor([1 - second, second], dtype=torch.float64)

    def cost(second: float) -> float:
        return -donsker_varadhan(weighted(parts, shares(second)))

    return shares(minimize_scalar(cost, bounds=(0, 1), method="bounded").x)
