"""Two networks in one, split in time: a wide one where an image takes its shape, another after it.

What an image shows is decided at log signal-to-noise ratios below about 0, on a small part of the
path's arc length, which is what a likelihood follows. The early network sees squares of pixels as
channels, so that it is cheap, and its weights serve these times alone.

Source: Balaji et al. 2022, arXiv:2211.01324.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from ebm_app.config import EarlyConfig
from ebm_app.nets.unet import UNet
from ebm_app.utils.errors import UserError


class EarlyNet(nn.Module):
    """A U-Net on squares of pixels: (B, C', H, W) -> (B, out_channels, H, W), of whose input it
    reads the first ``channels`` alone.

    Args:
        image_shape: (C, H, W). out_channels: of the output. config: see ``EarlyConfig``.
        num_classes: as for ``UNet``.

    Raises:
        UserError: where the image has no whole number of squares, and as ``UNet``.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        out_channels: int,
        config: EarlyConfig,
        num_classes: int = 0,
    ) -> None:
        super().__init__()
        self.channels, height, width = image_shape
        self.patch, squares = config.patch, config.patch**2
        if height % self.patch or width % self.patch:
            raise UserError(
                f"images of {height}x{width} have no squares of {self.patch} pixels: leave the "
                "early network out, or resize the images"
            )
        shape = (self.channels * squares, height // config.patch, width // config.patch)
        self.net = UNet(shape, out_channels * squares, config.net, num_classes)

    def uses_labels(self, t: Tensor) -> bool:
        """As ``UNet``."""
        return self.net.uses_labels(t)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """As ``UNet``."""
        squares = pixel_unshuffle(x[:, : self.channels], self.patch)
        return pixel_shuffle(self.net(squares, t, labels), self.patch)


class SplitNet(nn.Module):
    """The network ``early`` for what is read as a time below ``switch``, ``late`` for the rest."""

    def __init__(self, early: nn.Module, late: nn.Module, switch: float) -> None:
        super().__init__()
        self.early, self.late, self.switch = early, late, switch

    def uses_labels(self, t: Tensor) -> bool:
        """As ``UNet``."""
        is_early = t < self.switch
        return any(
            net.uses_labels(t) and rows.any().item()
            for net, rows in ((self.early, is_early), (self.late, ~is_early))
        )

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """As ``UNet``; every row goes to the network of its time."""
        is_early = t < self.switch
        if is_early.all():
            return self.early(x, t, labels)
        if not is_early.any():
            return self.late(x, t, labels)
        parts = [
            net(x[rows], t[rows], None if labels is None else labels[rows])
            for net, rows in ((self.early, is_early), (self.late, ~is_early))
        ]
        out = torch.empty((len(x), *parts[0].shape[1:]), dtype=parts[0].dtype, device=x.device)
        return out.index_put((is_early,), parts[0]).index_put((~is_early,), parts[1])
