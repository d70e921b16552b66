"""The ambient space: pixels scaled to [-1, 1]."""

import math

import torch
from torch import Tensor

from ebm_app.spaces.base import Space


class PixelSpace(Space):
    """u = 2 x - 1, log |det du/dx| = D log 2."""

    note = "pixels scaled to [-1, 1]"
    scale = 2.0

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = x[0].numel() * math.log(2)
        return 2 * x - 1, torch.full((len(x),), value, dtype=torch.float64, device=x.device)

    def decode(self, u: Tensor) -> Tensor:
        return (u + 1) / 2
