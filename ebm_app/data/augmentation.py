"""Augmentation of training images, for small data sets.

The network is conditioned on the parameters of the transform, so it learns one density per
condition. The density of the data has condition zero. Transforms therefore regularise the network
without changing samples or likelihoods.

Sources: Karras et al. 2020, arXiv:2006.06676, and, for the condition, Karras et al. 2022,
arXiv:2206.00364, appendix F.2.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ebm_app.utils.random import RowNoise
from ebm_app.utils.tensors import copy_to


class NoAugmentation:
    """Identity. Subclasses apply random transforms to levels (B, C, H, W), and return them with
    conditions (B, dim), which are zero for unchanged images."""

    dim: ClassVar[int] = 0

    def __call__(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, Tensor]:
        return levels, torch.zeros(len(levels), 0, device=levels.device)


class Flip(NoAugmentation):
    """Horizontal flip with probability 1/2. There is no condition, so the model learns the density
    of original and flipped images."""

    def __call__(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, Tensor]:
        chosen = noise.uniform(len(levels), 1, 1, 1) < 0.5
        mirrored = torch.where(chosen, levels.flip(-1), levels)
        return mirrored, torch.zeros(len(levels), 0, device=levels.device)


class Affine(NoAugmentation):
    """Random rotation, scaling, shear and shift, with probability 1/2.

    The condition has six standard normal numbers. Multiplied by ``deviations``, they are angles of
    rotation and shear in radians, log scales, and shifts as fractions of half the side.
    Interpolation is bilinear, rounded to the nearest level.
    """

    deviations = (0.12, 0.08, 0.08, 0.08, 0.08, 0.08)
    dim = len(deviations)

    def __call__(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, Tensor]:
        chosen = noise.uniform(len(levels), 1) < 0.5
        condition = noise.normal(len(levels), self.dim) * chosen
        angle, shear, log_x, log_y, shift_x, shift_y = (
            condition * copy_to(torch.tensor(self.deviations), levels.device)
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


AUGMENTATIONS: dict[str, type[NoAugmentation]] = {
    "none": NoAugmentation,
    "flip": Flip,
    "affine": Affine,
}
