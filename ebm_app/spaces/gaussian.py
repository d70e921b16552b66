"""Flows in closed form, whitened by the covariance of the data: a Gaussian on logits, and a
Gaussian copula on pixels."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.special import ndtri

from ebm_app.spaces.base import FIT_BATCH, Composed, Space
from ebm_app.spaces.elementwise import Logit
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch

#: Max values of an image; the covariance has the square of this number of elements
MAX_DIM = 2**15


class Whitening(Space):
    r"""Whitening u = S^{-1/2} (x - m), with the mean m and the shrunk covariance S of the data,

        S = (1 - s) C + s tr(C) / D I,

    so that u has mean 0 and covariance near I, in float64. C is the empirical covariance, which is
    singular for few images. The shrinkage s of Ledoit and Wolf minimises the expected distance
    from S to the true covariance. With the symmetric root (ZCA whitening), u stays closest to x
    and still looks like an image.

    Args:
        image_shape: (C, H, W).

    Source: Ledoit and Wolf 2004, https://doi.org/10.1016/S0047-259X(03)00096-4.
    """

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        dim = math.prod(image_shape)
        if dim > MAX_DIM:
            raise UserError(
                f"Expected images of at most {MAX_DIM} values for whitening, got {dim}. Use "
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
        r"""Estimate m and S from x (N, C, H, W). For K = N / repeats images, the shrinkage is

            s = (mean_n |x_n - m|^4 - |C|^2) / (K (|C|^2 - tr(C)^2 / D)),

        clamped to [0, 1], with the Frobenius norm of C.

        Raises:
            UserError: if a pixel is constant.
        """
        num_images = len(x) // repeats
        rows = x.flatten(1)
        if num_images < 2 or (rows == rows[0]).all(0).any():
            raise UserError("Whitening needs at least 2 images and no constant pixels.")
        batches = rows.split(FIT_BATCH)
        mean = sum(batch.double().sum(0) for batch in batches) / len(rows)
        covariance, fourth = torch.zeros_like(self.root), 0.0
        for batch in batches:
            centred = batch.double() - mean
            covariance += centred.mT @ centred / len(rows)
            fourth += centred.square().sum(1).square().sum().item() / len(rows)
        values, vectors = torch.linalg.eigh(covariance)
        square = values.square().sum().item()
        spread = square - len(values) * values.mean().item() ** 2
        share = min((fourth - square) / num_images, spread) / spread if spread > 0 else 0.0
        values = (1 - share) * values.clamp_min(0) + share * values.mean()
        self.mean.copy_(mean)
        self.root.copy_(vectors * values.sqrt() @ vectors.T)
        self.inverse_root.copy_(vectors / values.sqrt() @ vectors.T)
        self.log_det.copy_(-0.5 * values.log().sum())


class GaussianSpace(Composed):
    """Gaussian flow: logit, then whitening with the full covariance (paper, section 6.4)."""

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__(Logit(), Whitening(image_shape))


class PixelMarginals(Space):
    r"""Normalised marginals u_i = Phi^{-1}(F_i(x_i)), with the histogram CDF F_i of pixel i,

        log du_i/dx_i = log F_i'(x_i) - log phi(u_i).

    F_i is linear on the cell of each level, with exponential tails below 0 and above 1, so that
    every real u has a finite x. Half an image is added to the count of each cell and tail, so that
    none is empty (Krichevsky and Trofimov 1981). F is summed from both ends, in float64, so that
    both tails of u are precise.

    Args:
        image_shape: (C, H, W). num_levels: number of grey levels.
    """

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__()
        dim, cells = math.prod(image_shape), num_levels + 2
        self.num_levels = num_levels
        self.register_buffer("mass", torch.full((dim, cells), 1 / cells, dtype=torch.float64))

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        position = x.flatten(1).T.double() * self.num_levels
        last, cell = self.num_levels + 1, self._cells(position / self.num_levels)
        # fractions of the cell's mass left and right of x
        before, beyond = position.clamp_max(0), (self.num_levels - position).clamp_max(0)
        left = torch.where(cell == 0, before.exp(), position + 1 - cell)
        right = torch.where(cell == last, beyond.exp(), 1 - left)
        left = torch.where(cell == last, 1 - right, left)
        mass, (up, down) = self.mass.gather(1, cell), self._sums()
        below = up.gather(1, cell) + left * mass
        above = down.gather(1, last - cell) + right * mass
        u = torch.where(below < 0.5, ndtri(below), -ndtri(above))
        log_slope = (self.num_levels * mass).log() + before + beyond
        log_abs_det = sum_except_batch((log_slope - standard_normal_log_density(u)).T)
        return u.T.reshape(x.shape).to(x.dtype), log_abs_det

    def decode(self, u: Tensor) -> Tensor:
        rows = u.flatten(1).T.double().contiguous()
        below, above, (up, down) = _lower_tail(rows), _lower_tail(-rows), self._sums()
        last = self.num_levels + 1
        from_left = torch.searchsorted(up[:, 1:-1].contiguous(), below)
        from_right = last - torch.searchsorted(down[:, 1:-1].contiguous(), above)
        cell = torch.where(rows < 0, from_left, from_right)
        mass = self.mass.gather(1, cell)
        left = (below - up.gather(1, cell)) / mass
        right = (above - down.gather(1, last - cell)) / mass
        position = cell - 1 + torch.where(rows < 0, left, 1 - right)
        # log(1) outside the tails keeps gradients finite
        one = torch.ones_like(left)
        position = torch.where(cell == 0, torch.where(cell == 0, left, one).log(), position)
        tail = self.num_levels - torch.where(cell == last, right, one).log()
        position = torch.where(cell == last, tail, position)
        return (position / self.num_levels).T.reshape(u.shape).to(u.dtype)

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        """Count the levels of x (N, C, H, W); repeated draws of an image count as one."""
        counts, one = torch.full_like(self.mass, 0.5), torch.ones((), dtype=torch.float64)
        for batch in x.flatten(1).split(FIT_BATCH):
            cell = self._cells(batch.T.double())
            counts.scatter_add_(1, cell, (one / repeats).expand(cell.shape))
        self.mass.copy_(counts / counts.sum(1, keepdim=True))

    def _cells(self, rows: Tensor) -> Tensor:
        """Return the cell index of each value; the first and last cells are the tails."""
        return ((rows * self.num_levels).floor() + 1).long().clamp(0, self.num_levels + 1)

    def _sums(self) -> tuple[Tensor, Tensor]:
        """Return cumulative masses from the left and from the right, (D, L + 3) each."""
        zero = torch.zeros_like(self.mass[:, :1])
        up = torch.cat([zero, self.mass.cumsum(1)], 1)
        down = torch.cat([zero, self.mass.flip(1).cumsum(1)], 1)
        return up, down


def _lower_tail(u: Tensor) -> Tensor:
    """Return Phi(u) by erfc, because ``torch.special.ndtr`` rounds the far lower tail to 0."""
    return torch.erfc(-u / math.sqrt(2)) / 2


class CopulaSpace(Composed):
    """Gaussian copula: normalised marginals, then whitening (paper, appendix F.5).

    Source: Rhodes et al. 2020, arXiv:2006.12204.
    """

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        super().__init__(PixelMarginals(image_shape, num_levels), Whitening(image_shape))
