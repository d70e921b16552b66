r"""Two-dimensional toy data sets, on which a learned density can be compared by eye.

Each has mean 0 and a variance of 1, or nearly, in either coordinate, so that the reference
N(0, I) suits it.

- moons: two interleaved half circles of radius 1 with Gaussian noise; their density is an integral
  along the half circles, by Gauss-Legendre nodes.
- checkerboard: uniform on the eight dark squares of a 4 x 4 board.
- pinwheel: five arms, Gaussians stretched along the radius and then twisted by an angle that
  grows with the distance from the origin. A twist preserves area, hence the density of the arms
  carries over. After Johnson et al. 2016, arXiv:1603.06277, where the angle depends on the
  coordinate along the arm instead, which has no inverse in closed form.
- rings: three circles with Gaussian noise in the plane. For one of radius a,
  p(x) = exp(-(|x|^2 + a^2) / 2 s^2) I_0(a |x| / s^2) / (2 pi s^2), with I_0 the Bessel function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.numerics.quadrature import rule_on
from ebm_app.numerics.tensors import standard_normal_log_density
from ebm_app.ratios.pairs import Density

MOON_NOISE = 0.08  # where the half circles have radius 1
MOON_STDS = (math.sqrt(3 / 4 + MOON_NOISE**2), math.sqrt(9 / 16 - 1 / math.pi + MOON_NOISE**2))
MOON_NODES = 64


def _moon(angle: Tensor) -> Tensor:
    """The upper half circle about the mean of both; a half turn swaps them: (N,) -> (N, 2)."""
    return torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], 1)


def _sample_moons(num: int, generator: torch.Generator) -> Tensor:
    """The half circles (cos a, sin a) and (1 - cos a, 1/2 - sin a), a in [0, pi], with noise and
    brought to mean 0 and variance 1: (N, 2)."""
    angle = math.pi * _uniform(num, 1, generator)[:, 0]
    sign = 1.0 - 2.0 * _label(2, num, generator)
    noisy = sign[:, None] * _moon(angle) + MOON_NOISE * _normal(num, 2, generator)
    return noisy / noisy.new_tensor(MOON_STDS)


def _moons_log_density(x: Tensor) -> Tensor:
    """log of the mean over the angle of N(point; half circle, noise^2 I): (N, 2) -> (N,)."""
    rule = rule_on(MOON_NODES, 0.0, math.pi)
    arc, weight = _moon(rule.nodes).to(x.device), (rule.weights / (2 * math.pi)).to(x.device)
    stds = x.new_tensor(MOON_STDS)
    residual = ((x * stds)[:, None] - torch.cat([arc, -arc])) / MOON_NOISE
    logs = standard_normal_log_density(residual).sum(2) + weight.repeat(2).log()
    return torch.logsumexp(logs, 1) + stds.log().sum() - 2 * math.log(MOON_NOISE)


# The edges are binary fractions: no rounding of a draw then leads out of its square. The variance
# is 49/48.
SQUARE_SIDE = 7 / 8
SQUARES = [
    ((column - 1.5) * SQUARE_SIDE, (row - 1.5) * SQUARE_SIDE)
    for column in range(4)
    for row in range(4)
    if (column + row) % 2 == 0
]


def _sample_checkerboard(num: int, generator: torch.Generator) -> Tensor:
    """Uniform draws from the dark squares, (N, 2)."""
    offset = SQUARE_SIDE * (_uniform(num, 2, generator) - 0.5)
    return offset.new_tensor(SQUARES)[_label(len(SQUARES), num, generator)] + offset


def _checkerboard_log_density(x: Tensor) -> Tensor:
    """-log of the dark area on the dark squares, edges included, in nats: (N, 2) -> (N,)."""
    distance = (x[:, None] - x.new_tensor(SQUARES)).abs().amax(2).amin(1)
    level = -math.log(len(SQUARES) * SQUARE_SIDE**2)
    is_dark = distance <= SQUARE_SIDE / 2
    return torch.full_like(distance, level).masked_fill(~is_dark, -math.inf)


NUM_ARMS = 5
ARM_SCALE = 1 / math.sqrt((1 + 0.3**2 + 0.1**2) / 2)
ARM_CENTRE = (ARM_SCALE, 0.0)
ARM_STDS = (0.3 * ARM_SCALE, 0.1 * ARM_SCALE)  # along and across the arm
TWIST = 0.8  # radians per unit of distance


def _sample_pinwheel(num: int, generator: torch.Generator) -> Tensor:
    """N(centre, diag(stds^2)), turned to one of the arms and twisted: (N, 2)."""
    noise = _normal(num, 2, generator)
    arm = noise.new_tensor(ARM_CENTRE) + noise.new_tensor(ARM_STDS) * noise
    angle = 2 * math.pi / NUM_ARMS * _label(NUM_ARMS, num, generator)
    return _turned(arm, angle + TWIST * arm.norm(dim=1))


def _pinwheel_log_density(x: Tensor) -> Tensor:
    """log of the mean over the arms of N(untwisted x; centre, diag(stds^2)), in nats: (N, 2) ->
    (N,)."""
    straight = _turned(x, -TWIST * x.norm(dim=1))
    logs = []
    for arm in range(NUM_ARMS):
        angle = torch.full_like(x[:, 0], -2 * math.pi * arm / NUM_ARMS)
        residual = (_turned(straight, angle) - x.new_tensor(ARM_CENTRE)) / x.new_tensor(ARM_STDS)
        logs.append(standard_normal_log_density(residual).sum(1))
    log_area = math.log(ARM_STDS[0]) + math.log(ARM_STDS[1])
    return torch.logsumexp(torch.stack(logs), 0) - math.log(NUM_ARMS) - log_area


RING_SCALE = 1 / math.sqrt((1**2 + 2**2 + 3**2) / 6 + 0.12**2)
RING_RADII = (RING_SCALE, 2 * RING_SCALE, 3 * RING_SCALE)
RING_NOISE = 0.12 * RING_SCALE


def _sample_rings(num: int, generator: torch.Generator) -> Tensor:
    """radius (cos a, sin a) + noise, each radius with the same probability: (N, 2)."""
    angle = 2 * math.pi * _uniform(num, 1, generator)
    radius = angle.new_tensor(RING_RADII)[_label(len(RING_RADII), num, generator)]
    circle = torch.cat([angle.cos(), angle.sin()], 1)
    return radius[:, None] * circle + RING_NOISE * _normal(num, 2, generator)


def _rings_log_density(x: Tensor) -> Tensor:
    """log of the mean over the rings of the density in the module's docstring, in nats: (N, 2) ->
    (N,)."""
    distance = x.norm(dim=1)[:, None]
    radii = distance.new_tensor(RING_RADII)
    variance = RING_NOISE**2
    # i0e(z) = exp(-z) I_0(z) completes the square, where I_0 alone would overflow
    logs = torch.special.i0e(distance * radii / variance).log()
    logs = logs - (distance - radii).square() / (2 * variance)
    return torch.logsumexp(logs, 1) - math.log(2 * math.pi * variance * len(RING_RADII))


def _uniform(num: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.rand(num, columns, generator=generator, device=generator.device)


def _normal(num: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(num, columns, generator=generator, device=generator.device)


def _label(count: int, num: int, generator: torch.Generator) -> Tensor:
    """One of 0..count - 1 for every point, (N,)."""
    return torch.randint(count, (num,), generator=generator, device=generator.device)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Points (N, 2) turned about the origin by angles (N,)."""
    a, b = x.unbind(1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos * a - sin * b, sin * a + cos * b], 1)


@dataclass(frozen=True)
class Toy2D(Density):
    """A distribution on the plane, of mean 0.

    Args:
        draw: (num, generator) -> (N, 2), independent draws.
        log_p: (N, 2) float64 -> (N,), in nats.
    """

    draw: Callable[[int, torch.Generator], Tensor]
    log_p: Callable[[Tensor], Tensor]
    second_moment: float = 1.0
    dim: ClassVar[int] = 2

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        return self.draw(num, generator)

    def log_density(self, x: Tensor) -> Tensor:
        return self.log_p(x.double())


TOY_2D: dict[str, Toy2D] = {
    "moons": Toy2D(_sample_moons, _moons_log_density),
    "checkerboard": Toy2D(_sample_checkerboard, _checkerboard_log_density, 49 / 48),
    "pinwheel": Toy2D(_sample_pinwheel, _pinwheel_log_density),
    "rings": Toy2D(_sample_rings, _rings_log_density),
}
