"""Spline flow: rational-quadratic spline couplings, trained by maximum likelihood."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ebm_app.spaces.base import Composed, Space
from ebm_app.spaces.elementwise import Logit, Standardise
from ebm_app.utils.errors import UserError
from ebm_app.utils.tensors import sum_except_batch

if TYPE_CHECKING:
    from zuko.transforms import MonotonicRQSTransform

#: Splines are the identity outside [-BOUND, BOUND]
BOUND = 5.0
#: Numbers of couplings, of channels and residual blocks of their networks, and of spline bins
LAYERS, HIDDEN, BLOCKS, BINS = 8, 32, 2, 8
#: Max values of an image, limited by the memory of the couplings
MAX_DIM = 2**21


class Conditioner(nn.Module):
    """Convolutional network (B, C, H, W) -> (B, C_out, H, W) on the pixels in a mask.

    It has residual blocks of 3x3 convolutions without normalisation, so that an image does not
    depend on its batch. The mask and two coordinates are additional input channels, so that the
    output can depend on the position. The last convolution is initialised to zero.

    Args:
        mask: (C, H, W) bool, true for visible pixels. out_channels: C_out.

    Sources: He et al. 2016, arXiv:1603.05027, for the blocks; Liu et al. 2018, arXiv:1807.03247,
    for the coordinates.
    """

    def __init__(self, mask: Tensor, out_channels: int) -> None:
        super().__init__()
        channels, height, width = mask.shape
        rows = torch.linspace(-1, 1, height, device="cpu")[None, :, None]
        columns = torch.linspace(-1, 1, width, device="cpu")[None, None, :]
        planes = (plane.expand(1, height, width) for plane in (rows, columns))
        position = torch.cat([mask.float(), *planes])[None]
        # not in the state_dict: derived from the arguments, so never on the meta device
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("position", position, persistent=False)
        self.first = _convolution(2 * channels + 2, HIDDEN)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.SiLU(), _convolution(HIDDEN, HIDDEN), nn.SiLU(), _convolution(HIDDEN, HIDDEN)
            )
            for _ in range(BLOCKS)
        )
        self.last = _convolution(HIDDEN, out_channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) of any floating-point dtype to (B, C_out, H, W)."""
        masked = torch.where(self.mask, x, 0).to(self.position.dtype)
        h = self.first(torch.cat([masked, self.position.expand(len(x), -1, -1, -1)], 1))
        for block in self.blocks:
            h = h + block(h)
        return self.last(nn.functional.silu(h))


def _convolution(channels_in: int, channels_out: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1)


class Coupling(Space):
    r"""Coupling that maps half of the pixels by splines conditional on the other half:

        u_i = x_i (i kept),   u_i = s(x_i; theta_i(x kept)) (i transformed),
        log |det du/dx| = sum_{i transformed} log s'(x_i; theta_i).

    The halves are the colours of a checkerboard over channels, rows and columns. s is a monotone
    rational-quadratic spline in float64, initialised to the identity.

    Args:
        image_shape: (C, H, W).
        parity: c + h + w modulo 2 of the kept pixels.

    Sources: Durkan et al. 2019, arXiv:1906.04032; Dinh et al. 2017, arXiv:1605.08803, section 3.4,
    for the checkerboard.
    """

    sizes = (BINS, BINS, BINS - 1)

    def __init__(self, image_shape: Sequence[int], parity: int) -> None:
        super().__init__()
        sizes = (torch.arange(size, device="cpu") for size in image_shape)
        is_kept = torch.cartesian_prod(*sizes).sum(1) % 2 == parity
        # not in the state_dict: derived from the arguments, so never on the meta device
        self.register_buffer("transformed", (~is_kept).nonzero()[:, 0], persistent=False)
        out_channels = image_shape[0] * sum(self.sizes)
        self.conditioner = Conditioner(is_kept.view(*image_shape), out_channels)

    def encode_with_log_abs_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        moved, log_slope = self._spline(x).call_and_ladj(self._take(x))
        return self._replace(x, moved), sum_except_batch(log_slope)

    def decode(self, u: Tensor) -> Tensor:
        return self._replace(u, self._spline(u).inv(self._take(u)))

    def _spline(self, x: Tensor) -> "MonotonicRQSTransform":
        """Return the splines of the transformed pixels, conditional on the kept pixels of x."""
        parameters = self.conditioner(x).unflatten(1, (-1, sum(self.sizes))).movedim(2, -1)
        parameters = parameters.flatten(1, 3)[:, self.transformed].double()
        from zuko.transforms import MonotonicRQSTransform  # an extra

        return MonotonicRQSTransform(*parameters.split(self.sizes, -1), bound=BOUND)

    def _take(self, x: Tensor) -> Tensor:
        """Return the transformed pixels of x, (B, M) float64."""
        return x.flatten(1)[:, self.transformed].double()

    def _replace(self, x: Tensor, values: Tensor) -> Tensor:
        """Return x with its transformed pixels replaced by ``values`` (B, M)."""
        return x.flatten(1).index_copy(1, self.transformed, values.to(x.dtype)).view_as(x)


class SplineSpace(Composed):
    """Spline flow: logit, standardisation, and ``LAYERS`` couplings of alternating parity.

    Raises:
        UserError: if the images are too large.
    """

    def __init__(self, image_shape: Sequence[int], num_levels: int) -> None:
        dim = math.prod(image_shape)
        if dim > MAX_DIM:
            raise UserError(
                f"Expected images of at most {MAX_DIM} values for a spline flow, got {dim}. "
                "Resize them."
            )
        super().__init__(
            Logit(1e-3),
            Standardise(image_shape),
            *(Coupling(image_shape, index % 2) for index in range(LAYERS)),
        )

    @torch.no_grad()
    def fit(self, x: Tensor, repeats: int = 1) -> None:
        """Estimate the standardisation from x (N, C, H, W). The couplings must be trained."""
        logit, standardise, *_ = self.parts
        standardise.fit(logit.encode(x), repeats)
