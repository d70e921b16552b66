"""Composite networks: a separate network for early times, and a network on decoded latent points.

The content of an image is decided at log SNRs below about 0. These early times are a small part of
the arc length of the path, and thereby of the cost of a likelihood, so a separate wide network for
them improves samples at little cost. It has the pixels of a patch as input channels.

Source: Balaji et al. 2022, arXiv:2211.01324.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from ebm_app.config import EarlyConfig
from ebm_app.nets.unet import UNet
from ebm_app.utils.errors import UserError

#: Inputs of a network in a latent space
NET_INPUTS = {"u": "the latent point", "x": "its image"}


class EarlyNet(nn.Module):
    """U-Net on patches of pixels: (B, C', H, W) -> (B, out_channels, H, W). It only uses the first
    C input channels.

    Args:
        image_shape: (C, H, W).
        out_channels: channels of the output.
        config: see ``EarlyConfig``.
        num_classes: as for ``UNet``.

    Raises:
        UserError: if the patches do not divide the image.
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
        self.patch, pixels = config.patch, config.patch**2
        if height % self.patch or width % self.patch:
            raise UserError(
                f"Image size {height}x{width} is not divisible by patch size {self.patch}. Leave "
                "out early_channels, or resize the images."
            )
        shape = (self.channels * pixels, height // config.patch, width // config.patch)
        self.net = UNet(shape, out_channels * pixels, config.net, num_classes)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Evaluate the network. Arguments are those of ``UNet``."""
        patches = pixel_unshuffle(x[:, : self.channels], self.patch)
        return pixel_shuffle(self.net(patches, t, labels), self.patch)


class SplitNet(nn.Module):
    """Network ``early`` for time inputs below ``switch``, and ``late`` for other time inputs."""

    def __init__(self, early: nn.Module, late: nn.Module, switch: float) -> None:
        super().__init__()
        self.early, self.late, self.switch = early, late, switch

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Evaluate each row with the network for its time. Arguments are those of ``UNet``."""
        is_early = t < self.switch
        if torch.compiler.is_compiling():  # selecting rows would split the graph
            rows = is_early.reshape(-1, *(1,) * (x.ndim - 1))
            return torch.where(rows, self.early(x, t, labels), self.late(x, t, labels))
        if is_early.all():
            return self.early(x, t, labels)
        if not is_early.any():
            return self.late(x, t, labels)
        early, late = (
            net(x[rows], t[rows], None if labels is None else labels[rows])
            for net, rows in ((self.early, is_early), (self.late, ~is_early))
        )
        out = torch.empty((len(x), *early.shape[1:]), dtype=early.dtype, device=x.device)
        return out.index_put((is_early,), early).index_put((~is_early,), late)


class Decoded(nn.Module):
    """Network (u, t) -> net(2 x - 1, t), where x is the decoded image of the latent point u.

    A bijection that does not depend on t leaves the time score unchanged, so the network may use u
    or x (paper, appendix F.5).

    Args:
        net: network.
        decode: (B, C, H, W) -> (B, C, H, W); not a submodule.
        channels: C; further input channels are passed through.
    """

    def __init__(self, net: nn.Module, decode: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.net, self.decode, self.channels = net, decode, channels

    @property
    def last_layer(self) -> nn.Conv2d:
        """Last convolution of the network."""
        return self.net.last_layer

    def forward(self, u: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map u (B, C + further channels, H, W) and t (B,) to the output of the network."""
        image = 2 * self.decode(u[:, : self.channels]) - 1
        return self.net(torch.cat([image, u[:, self.channels :]], 1), t, labels)
