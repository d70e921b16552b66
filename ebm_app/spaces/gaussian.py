"""Whitening: an affine bijection after which data have mean 0 and covariance near I."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.spaces.base import Composed, Space
from ebm_app.spaces.elementwise import Logit
from ebm_app.utils.errors import UserError

#: components, whose covariance is held
LARGEST = 2**15


class Whitening(Space):
    r"""u = S^{-1/2} (x - m), with m the mean of the data over all components and

        S = (1 - s) C + s tr(C) / D I,

    C their covariance. The symmetric root changes x least (zero-phase whitening): u still looks
    like an image. The share s is that of Ledoit and Wolf, by which S is closest to the covariance
    of all images: C of few images is singular, and gives others no probability. All in float64.

    Args:
        image_shape: (C, H, W).

    Source: Ledoit and Wolf 2004, https://doi.org/10.1016/S0047-259X(03)00096-4.
    """

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        dim = math.prod(image_shape)
        if dim > LARGEST:
            raise UserError(
                f"whitening is for images of up to {LARGEST} numbers: take another space"
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
        """Set m and S to those of x (N, C, H, W); the share is that of one draw of every image.

        Raises:
            UserError: where a component never changes.
        """
        from sklearn.covariance import ledoit_wolf_shrinkage  # a second to import, only for this

        rows = x.flatten(1).double().cpu()
        num_images = len(rows) // repeats
        if num_images < 2 or (rows.var(0) == 0).any():
            raise UserError("whitening needs at least 2 images, and components that change")
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
