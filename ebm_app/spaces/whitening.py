"""Whitening: an affine bijection after which data have mean 0 and covariance near I."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.spaces.base import Space


class Whitening(Space):
    r"""u = S^{-1/2} (x - m), with m the mean and S the covariance of the data over all components.

    The symmetric root changes x least (zero-phase whitening): u still looks like an image. S is
    shrunk towards a multiple of I as far as its sampling error asks, so that it always has a root.
    All in float64. Source of the shrinkage: Ledoit and Wolf 2004,
    https://doi.org/10.1016/S0047-259X(03)00096-4.

    Args:
        image_shape: (C, H, W).
    """

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        dim = math.prod(image_shape)
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("root", torch.eye(dim, dtype=torch.float64))
        self.register_buffer("inverse_root", torch.eye(dim, dtype=torch.float64))
        self.register_buffer("log_det", torch.zeros((), dtype=torch.float64))

    def encode(self, x: Tensor) -> Tensor:
        rows = (x.flatten(1).double() - self.mean) @ self.inverse_root
        return rows.to(x.dtype).view_as(x)

    def decode(self, u: Tensor) -> Tensor:
        rows = u.flatten(1).double() @ self.root + self.mean
        return rows.to(u.dtype).view_as(u)

    def log_abs_det(self, x: Tensor) -> Tensor:
        return self.log_det.expand(len(x))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Set m and S to those of x (N, C, H, W).

        Raises:
            UserError: where a component never changes.
        """
        rows = x.flatten(1).double().cpu()
        if len(rows) < 2 or (rows.var(0) == 0).any():
            raise UserError("whitening needs at least 2 images, and components that change")
        from sklearn.covariance import ledoit_wolf  # over a second to import, only for this

        covariance = torch.from_numpy(ledoit_wolf(rows.numpy())[0])
        values, vectors = torch.linalg.eigh(covariance)
        self.mean.copy_(rows.mean(0))
        self.root.copy_(vectors * values.sqrt() @ vectors.T)
        self.inverse_root.copy_(vectors / values.sqrt() @ vectors.T)
        self.log_det.copy_(-0.5 * values.log().sum())
