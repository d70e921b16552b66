"""Standardisation: every component to mean 0 and variance 1."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.spaces.base import Space


class Standardise(Space):
    r"""u_i = (x_i - m_i) / s_i, log |det du/dx| = -sum_i log s_i, with m_i the mean and s_i^2 the
    variance of component i over the data, joined by one image more with the variance of all: what
    is the same in a few images need not be so in others. All in float64.

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
        """Set m and s to those of x (N, C, H, W); the draws of an image count as one.

        Raises:
            UserError: where a component never changes.
        """
        x = x.double()
        # compared, as the variance of equal values can round to more than 0
        if len(x) < 2 or (x == x[0]).all(0).any():
            raise UserError("standardising needs at least 2 images, and components that change")
        self.mean.copy_(x.mean(0))
        share, variance = 1 / (1 + len(x) // repeats), x.var(0)
        self.std.copy_(((1 - share) * variance + share * variance.mean()).sqrt())
