"""Elementwise bijections: affine maps, logits and standardisation."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.spaces.base import Space
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import sum_except_batch


class PixelSpace(Space):
    """Pixels in [-1, 1]: u = s (x - 1/2) with s = 2, and log |det du/dx| = D log s."""

    scale = 2.0

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = x[0].numel() * math.log(self.scale)
        u = self.scale * (x - 0.5)
        return u, torch.full((len(x),), value, dtype=torch.float64, device=x.device)

    def decode(self, u: Tensor) -> Tensor:
        return u / self.scale + 0.5


class DisplaySpace(PixelSpace):
    """Display values in [-1, 1], as in diffusers.

    u = s (x - 1/2) with s = 2 L / (L - 1). The centre of the cell of level k is
    u = 2 k / (L - 1) - 1.
    """

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__()
        self.scale = 2 * num_levels / (num_levels - 1)


class Logit(Space):
    r"""Logit u = log(p / (1 - p)) with p = m + (1 - 2 m) x and du/dx = (1 - 2 m) / (p (1 - p)).

    Source: Dinh et al. 2017, arXiv:1605.08803, section 4.1.

    Args:
        margin: m in (0, 1/2), which keeps u finite at x = 0 and x = 1.
    """

    def __init__(self, margin: float = 1e-6) -> None:
        super().__init__()
        self.margin = margin

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # log p and log(1 - p) without cancellation
        share = (1 - 2 * self.margin) * x.double()
        low, high = (self.margin + share).log(), ((1 - self.margin) - share).log()
        log_slope = math.log1p(-2 * self.margin) - low - high
        return (low - high).to(x.dtype), sum_except_batch(log_slope)

    def decode(self, u: Tensor) -> Tensor:
        p = torch.sigmoid(u.double())
        return ((p - self.margin) / (1 - 2 * self.margin)).to(u.dtype)


class Standardise(Space):
    r"""Standardisation u_i = (x_i - m_i) / s_i with log |det du/dx| = -sum_i log s_i, in float64.

    m_i is the mean of pixel i over the data. s_i^2 is its variance, shrunk towards the mean
    variance of all pixels with the weight of one image, to keep s_i away from 0 for few images.

    Args:
        image_shape: (C, H, W).
    """

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(*image_shape, dtype=torch.float64))
        self.register_buffer("std", torch.ones(*image_shape, dtype=torch.float64))

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = ((x.double() - self.mean) / self.std).to(x.dtype)
        return u, -self.std.log().sum().expand(len(x))

    def decode(self, u: Tensor) -> Tensor:
        return (u.double() * self.std + self.mean).to(u.dtype)

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        """Estimate m and s from x (N, C, H, W).

        Raises:
            UserError: if a pixel is constant.
        """
        x = x.double()
        # the variance of equal values may round to more than 0
        if len(x) < 2 or (x == x[0]).all(0).any():
            raise UserError("Standardisation needs at least 2 images and no constant pixels.")
        self.mean.copy_(x.mean(0))
        share, variance = 1 / (1 + len(x) // repeats), x.var(0)
        self.std.copy_(((1 - share) * variance + share * variance.mean()).sqrt())
