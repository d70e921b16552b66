"""Whitening: an affine bijection after which data have mean 0 and covariance near I."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ebm_app.io.errors import UserError
from ebm_app.spaces.base import Space

#: shares of the covariance that may be taken from a multiple of I
SHARES = torch.logspace(-8, 0, 33, dtype=torch.float64)
#: parts of the images, each left out once to choose a share; of this many images only one is
FOLDS, MANY = 5, 1000


class Whitening(Space):
    r"""u = S^{-1/2} (x - m), with m the mean of the data over all components and

        S = (1 - s) C + s tr(C) / D I,

    C their covariance. The symmetric root changes x least (zero-phase whitening): u still looks
    like an image. The share s is the one of ``SHARES`` by which images that C has not seen are
    most likely: C of few images is singular, and gives others no probability. All in float64.

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

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = (x.flatten(1).double() - self.mean) @ self.inverse_root
        return rows.to(x.dtype).view_as(x), self.log_det.expand(len(x))

    def decode(self, u: Tensor) -> Tensor:
        rows = u.flatten(1).double() @ self.root + self.mean
        return rows.to(u.dtype).view_as(u)

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        """Set m and S to those of x (N, C, H, W); the draws of an image are left out together.

        Raises:
            UserError: where a component never changes.
        """
        rows = x.flatten(1).double().cpu()
        if len(rows) // repeats < 2 or (rows.var(0) == 0).any():
            raise UserError("whitening needs at least 2 images, and components that change")
        mean, values, vectors = principal(rows)
        values = shrunk(values, torch.tensor(best_share(rows, repeats)))
        self.mean.copy_(mean)
        self.root.copy_(vectors * values.sqrt() @ vectors.T)
        self.inverse_root.copy_(vectors / values.sqrt() @ vectors.T)
        self.log_det.copy_(-0.5 * values.log().sum())


def principal(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (D,) of rows (N, D), and eigenvalues (D,) and eigenvectors (D, D) of their covariance,
    a column each."""
    values, vectors = torch.linalg.eigh(rows.T.cov(correction=0).reshape(2 * rows.shape[1:]))
    return rows.mean(0), values.clamp_min(0), vectors


def shrunk(values: Tensor, share: Tensor) -> Tensor:
    """Eigenvalues (*, D) of S for those of C (D,) and shares (*)."""
    share = share[..., None].to(values)
    return (1 - share) * values + share * values.mean()


def best_share(rows: Tensor, repeats: int) -> float:
    """The one of ``SHARES`` under which the left-out rows of (N, D) are most likely."""
    num_images = len(rows) // repeats
    folds = min(FOLDS, num_images)
    parts = folds if num_images < MANY else 1
    fold = torch.arange(len(rows)) % num_images % folds
    loss = torch.zeros_like(SHARES)
    for part in range(parts):
        mean, values, vectors = principal(rows[fold != part])
        moved = ((rows[fold == part] - mean) @ vectors).square().mean(0)
        variances = shrunk(values, SHARES)
        loss += (variances.log() + moved / variances).sum(1)
    return SHARES[loss.argmin()].item()
