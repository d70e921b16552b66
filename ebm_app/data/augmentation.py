"""Changed copies of training images, for small data sets.

A copy has a condition that says how it was changed, an input of the network, which then
learns one density for each condition; the density of the data is that of condition zero. Changed
copies therefore regularise the network without leaking into what it draws or scores.
Source: Karras et al. 2020, arXiv:2006.06676; as a condition, Karras et al. 2022, arXiv:2206.00364,
appendix F.2.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ebm_app.utils.random import RowNoise


class NoAugmentation:
    """The images as they are; another augmentation changes a batch of levels (B, C, H, W) at
    random, and conditions (B, dim), zero for no change, say how."""

    dim: ClassVar[int] = 0

    def __call__(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, Tensor]:
        return levels, torch.zeros(len(levels), 0, device=levels.device)


class Affine(NoAugmentation):
    """Rotation, scaling by axis, shear and shift of every second image, by bilinear interpolation
    rounded to the nearest level.

    Each of the six numbers is normal: rotation and shear in radians, logarithm of the scales,
    shifts as a fraction of half the image's side.
    """

    deviations = (0.12, 0.08, 0.08, 0.08, 0.08, 0.08)
    dim = len(deviations)

    def __call__(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, Tensor]:
        chosen = noise.uniform(len(levels), 1) < 0.5
        condition = noise.normal(len(levels), self.dim) * chosen
        angle, shear, log_x, log_y, shift_x, shift_y = (
            condition * torch.tensor(self.deviations, device=levels.device)
        ).unbind(1)
        cos, sin = angle.cos(), angle.sin()
        scale_x, scale_y, slant = log_x.exp(), log_y.exp(), shear.tan()
        rows = (
            torch.stack([cos * scale_x, (slant - sin) * scale_y, shift_x], 1),
            torch.stack([sin * scale_x, cos * scale_y, shift_y], 1),
        )
        grid = affine_grid(torch.stack(rows, 1), list(levels.shape), align_corners=False)
        changed = grid_sample(levels.float(), grid, padding_mode="border", align_corners=False)
        mask = chosen.reshape(-1, 1, 1, 1)
        return torch.where(mask, changed.round().to(levels.dtype), levels), condition


AUGMENTATIONS: dict[str, type[NoAugmentation]] = {"none": NoAugmentation, "affine": Affine}
