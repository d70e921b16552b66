r"""Two-dimensional toy data sets, for plots of learned densities.

Each is a mixture of equal Gaussians along curves, close enough to look continuous, with mean 0 and
variance 1 in each coordinate, like the reference N(0, I).

- moons: two interleaved half circles.
- pinwheel: five arms, twisted by an angle that grows with the distance from the origin, after
  Johnson et al. 2016, arXiv:1603.06277.
- rings: three circles.
"""

import math

import torch
from torch import Tensor

from ebm_app.ratios.pairs import GaussianMixture, mixture


def along(curve: Tensor, std: float) -> GaussianMixture:
    """Mixture of N(point, std^2 I) at points (J, 2) of curves, standardised to mean 0 and variance
    1."""
    points = curve - curve.mean(0)
    scale = 1 / (points.square().mean(0) + std**2).sqrt()
    return mixture(points * scale, std * scale)


def polar(radius: Tensor, angle: Tensor) -> Tensor:
    """Points (J, 2) from polar coordinates, which are broadcast."""
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1).flatten(0, -2)


def _midpoints(num: int) -> Tensor:
    """Midpoints of ``num`` equal intervals of [0, 1]."""
    return (torch.arange(num, dtype=torch.float64) + 0.5) / num


def _moons() -> GaussianMixture:
    arc = polar(torch.ones(()), math.pi * _midpoints(64))
    return along(torch.cat([arc, torch.tensor([1.0, 0.5]) - arc]), 0.08)


def _pinwheel() -> GaussianMixture:
    radius = 1 + 0.3 * torch.special.ndtri(_midpoints(25))
    arms = 2 * math.pi * torch.arange(5) / 5
    return along(polar(radius, arms[:, None] + 1.2 * radius), 0.1)


def _rings() -> GaussianMixture:
    radius = torch.tensor([[1.0], [2.0], [3.0]])
    return along(polar(radius, 2 * math.pi * _midpoints(150)), 0.12)


TOY_2D = {"moons": _moons(), "pinwheel": _pinwheel(), "rings": _rings()}
