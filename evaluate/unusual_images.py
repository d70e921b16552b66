"""Unusual images, made from ordinary images for the benchmark of anomaly detection.

A transform changes images (N, C, H, W) in [0, 1]. Its strength is random, from hardly visible to
unrelated to the data.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ebm_app.data.levels import to_display

#: (images (N, C, H, W) in [0, 1], generator) -> changed images
Kind = Callable[[Tensor, torch.Generator], Tensor]
#: Fraction of images that are changed by two transforms
TWICE = 1 / 3


def _uniform(x: Tensor, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Draw one uniform number per image, (N, 1, 1, 1)."""
    return low + (high - low) * torch.rand((len(x), 1, 1, 1), generator=generator)


def _partner(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a different image of the batch for each image."""
    return x.roll(1 + int(torch.randint(max(1, len(x) - 1), (), generator=generator)), 0)


def warp(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate by a random angle, scale by 0.55 to 1.8, shear and shift."""
    angle, log_scale, shear, left, up = (
        _uniform(x, generator, -limit, limit).flatten() for limit in (math.pi, 0.6, 0.5, 0.4, 0.4)
    )
    scale, (cos, sin) = log_scale.exp(), (angle.cos(), angle.sin())
    rows = (scale * cos, scale * (shear - sin), left, scale * sin, scale * cos, up)
    matrix = torch.stack(rows, 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def halve(x: Tensor, generator: torch.Generator) -> Tensor:
    """Combine halves of two images along a straight line through the centre."""
    angle = _uniform(x, generator, 0, 2 * math.pi)
    rows, columns = (torch.linspace(-1, 1, side) for side in x.shape[-2:])
    is_first = rows[:, None] * angle.sin() + columns * angle.cos() > 0
    return torch.where(is_first, x, _partner(x, generator))


def blank(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return blank images: a third black, a sixth white, a sixth gradients, the rest constant."""
    left, right = _uniform(x, generator), _uniform(x, generator)
    choice = _uniform(x, generator, 0, 6).floor()
    left = torch.where(choice < 2, 0.0, torch.where(choice == 2, 1.0, left))
    right = torch.where(choice == 5, right, left)
    return torch.lerp(left, right, torch.linspace(0, 1, x.shape[-1])).expand_as(x)


def add_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Add normal noise with log-uniform standard deviation from 0.005 to 1."""
    std = _uniform(x, generator, math.log(0.005), 0).exp()
    return x + std * torch.randn(x.shape, generator=generator)


def smooth_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random grey value plus normal noise at several length scales."""
    noise, side = _uniform(x, generator).expand_as(x), 1
    while side <= min(x.shape[-2:]):
        draws = torch.randn((*x.shape[:2], side, side), generator=generator)
        std = _uniform(x, generator, math.log(0.01), 0).exp()
        noise = noise + std * F.interpolate(draws, x.shape[-2:], mode="bilinear")
        side *= 2
    return noise


def change_contrast(x: Tensor, generator: torch.Generator) -> Tensor:
    """Invert a third of the images, then apply a power and a linear map to the grey values."""
    x = torch.where(_uniform(x, generator) < 1 / 3, 1 - x, x)
    powers = x.clamp(0, 1) ** _uniform(x, generator, -1, 1).exp()
    low, high = _uniform(x, generator, -0.5, 0.5), _uniform(x, generator, 0.5, 1.5)
    return torch.lerp(low.clamp(min=0), high.clamp(max=1), powers)


def posterise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Round the grey values to 2 to 8 levels."""
    steps = _uniform(x, generator, 1, 8).floor()
    return (x.clamp(0, 1) * steps).round() / steps


def shuffle(x: Tensor, generator: torch.Generator) -> Tensor:
    """Permute square blocks with sides of 1, 2 or 4 pixels."""
    size = 2 ** int(torch.randint(3, (), generator=generator))
    size = math.gcd(size, *x.shape[-2:])
    blocks = F.pixel_unshuffle(x, size).flatten(2)
    order = torch.rand((len(x), 1, blocks.shape[2]), generator=generator).argsort(2)
    shape = (len(x), -1, x.shape[-2] // size, x.shape[-1] // size)
    return F.pixel_shuffle(blocks.gather(2, order.expand_as(blocks)).view(shape), size)


def blur_or_sharpen(x: Tensor, generator: torch.Generator) -> Tensor:
    """Blur or sharpen by interpolating to, or extrapolating from, a local mean."""
    mean = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return torch.lerp(x, mean, _uniform(x, generator, -2, 1))


def thicken(x: Tensor, generator: torch.Generator) -> Tensor:
    """Interpolate between each pixel and the max of its neighbourhood."""
    return torch.lerp(x, F.max_pool2d(x, 3, 1, 1), _uniform(x, generator))


def insert_square(x: Tensor, generator: torch.Generator) -> Tensor:
    """Replace a square by a square of another image."""
    rows, columns = (torch.linspace(-1, 1, side) for side in x.shape[-2:])
    top, left = _uniform(x, generator, -0.7, 0.7), _uniform(x, generator, -0.7, 0.7)
    away = torch.maximum((rows[:, None] - top).abs(), (columns - left).abs())
    return torch.where(away < _uniform(x, generator, 0.2, 0.6), _partner(x, generator), x)


KINDS: dict[str, Kind] = {
    "warped": warp,
    "halves of two": halve,
    "blank": blank,
    "noisy": add_noise,
    "smooth noise": smooth_noise,
    "contrast": change_contrast,
    "posterised": posterise,
    "shuffled": shuffle,
    "blurred or sharpened": blur_or_sharpen,
    "thick strokes": thicken,
    "a square of another": insert_square,
}


def make_unusual(
    levels: Tensor, num_levels: int, generator: torch.Generator, kinds: dict[str, Kind]
) -> Tensor:
    """Change each image of levels (N, C, H, W) by one or two random ``kinds``.

    >>> levels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> make_unusual(levels, 17, torch.Generator().manual_seed(0), KINDS).shape
    torch.Size([2, 1, 8, 8])
    """
    x, num = to_display(levels.float(), num_levels), len(levels)
    first, second = torch.randint(len(kinds), (2, num), generator=generator)
    is_changed_twice = torch.rand(num, generator=generator) < TWICE
    for chosen in (first, torch.where(is_changed_twice, second, -1)):
        for index, change in enumerate(kinds.values()):
            rows = (chosen == index).nonzero().flatten()
            if len(rows):
                x[rows] = change(x[rows], generator).clamp(0, 1)
    return (x * (num_levels - 1)).round().to(torch.uint8)
