"""Gaussian flow: logits, whitened by the covariance of the data."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.spaces.base import Composed, Space
from ebm_app.spaces.elementwise import Logit
from ebm_app.utils.errors import UserError

#: Max pixels times channels: the covariance has the square of this many elements
MAX_DIM = 2**15


class Whitening(Space):
    r"""u = S^{-1/2} (x - m), where m is the mean of the data and S their shrunk covariance,

        S = (1 - s) C + s tr(C) / D I,

    so that u has mean 0 and covariance near I, in float64. C is the empirical covariance, which is
    singular for few images. The shrinkage s of Ledoit and Wolf minimises the expected distance of
    S to the true covariance. The symmetric root (zero-phase whitening) changes x least: u still
    looks like an image.

    Args:
        image_shape: (C, H, W).

    Source: Ledoit and Wolf 2004, https://doi.org/10.1016/S0047-259X(03)00096-4.
    """

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        dim = math.prod(image_shape)
        if dim > MAX_DIM:
            raise UserError(
                f"Expected images of at most {MAX_DIM} values for whitening, got {dim}. Choose "
                "another space."
            )
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("root", torch.eye(dim, dtype=torch.float64))
        self.register_buffer("inverse_root", torch.eye(dim, dtype=torch.float64))
        self.register_buffer("log_det", torch.zeros((), dtype=torch.float64))

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = (x.flatten(1).double() - self.mean) @ self.inverse_root
        return rows.to(x.dtype).view_as(x), self.log_det.expand(len(x))

    def decode(self, u: Tensor) -> Tensor:
        rows = u.flatten(1).double() @ self.root + self.mean
        return rows.to(u.dtype).view_as(u)

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        """Estimate m and S from x (N, C, H, W), and the shrinkage from one draw of each image.

        Raises:
            UserError: if a pixel is constant.
        """
        from sklearn.covariance import ledoit_wolf_shrinkage  # a second to import

        rows = x.flatten(1).double().cpu()
        num_images = len(rows) // repeats
        if num_images < 2 or (rows.var(0) == 0).any():
            raise UserError("Whitening needs at least 2 images and pixels that change.")
        share = float(ledoit_wolf_shrinkage(rows[:num_images].numpy()))
        covariance = rows.T.cov(correction=0).reshape(2 * rows.shape[1:])
        values, vectors = torch.linalg.eigh(covariance)
        values = (1 - share) * values.clamp_min(0) + share * values.mean()
        self.mean.copy_(rows.mean(0))
        self.root.copy_(vectors * values.sqrt() @ vectors.T)
        self.inverse_root.copy_(vectors / values.sqrt() @ vectors.T)
        self.log_det.copy_(-0.5 * values.log().sum())


class GaussianSpace(Composed):
    """Logit, then whitening with the full covariance (paper, section 6.4)."""

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__(Logit(), Whitening(image_shape))
