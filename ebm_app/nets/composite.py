"""Networks composed of networks: for early and late times, and for images of latent points.

An image takes shape at log signal-to-noise ratios below about 0. This is a small part of the arc
length of the path, which a likelihood follows, so a wide network of its own improves samples at
little cost. The early network is used at these times only. It takes the pixels of a patch as
channels.

Source: Balaji et al. 2022, arXiv:2211.01324.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from ebm_app.config import EarlyConfig
from ebm_app.nets.unet import UNet
from ebm_app.utils.errors import UserError

#: Inputs of a network in a latent space.
NET_INPUTS = {"u": "the latent point", "x": "its image"}


class EarlyNet(nn.Module):
    """U-Net on patches of pixels: (B, C', H, W) -> (B, out_channels, H, W), where only the first C
    channels of the input are used.

    Args:
        image_shape: (C, H, W).
        out_channels: channels of the output.
        config: see ``EarlyConfig``.
        num_classes: as for ``UNet``.
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
                f"Images of {height}x{width} cannot be split into patches of {self.patch} pixels. "
                "Leave early_channels out, or resize the images."
            )
        shape = (self.channels * pixels, height // config.patch, width // config.patch)
        self.net = UNet(shape, out_channels * pixels, config.net, num_classes)

    def uses_labels(self, t: Tensor) -> bool:
        """Return whether labels change the output at any of the times t (B,)."""
        return self.net.uses_labels(t)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Evaluate the network, with the arguments of ``UNet``."""
        patches = pixel_unshuffle(x[:, : self.channels], self.patch)
        return pixel_shuffle(self.net(patches, t, labels), self.patch)


class SplitNet(nn.Module):
    """The network ``early`` for time inputs below ``switch``, and ``late`` for the others."""

    def __init__(self, early: nn.Module, late: nn.Module, switch: float) -> None:
        super().__init__()
        self.early, self.late, self.switch = early, late, switch

    def uses_labels(self, t: Tensor) -> bool:
        """Return whether labels change the output at any of the times t (B,)."""
        is_early = t < self.switch
        return any(
            net.uses_labels(t) and rows.any().item()
            for net, rows in ((self.early, is_early), (self.late, ~is_early))
        )

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Evaluate each row by the network for its time, with the arguments of ``UNet``."""
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


class Decoded(nn.Module):
    """(u, t) -> net(2 x - 1, t), where x is the image of the latent point u.

    A bijection that does not depend on t changes no time score, so the network may read either
    side (paper, appendix F.5).

    Args:
        net: the network.
        decode: (B, C, H, W) -> (B, C, H, W); not a submodule.
        channels: C; further channels of the input are passed through.
    """

    def __init__(self, net: nn.Module, decode: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.net, self.decode, self.channels = net, decode, channels

    @property
    def last_layer(self) -> nn.Conv2d:
        """Last convolution of the network."""
        return self.net.last_layer

    def uses_labels(self, t: Tensor) -> bool:
        """Return whether labels change the output at any of the times t (B,)."""
        return self.net.uses_labels(t)

    def forward(self, u: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map u (B, C + more, H, W) and t (B,) to the output of the network."""
        image = 2 * self.decode(u[:, : self.channels]) - 1
        return self.net(torch.cat([image, u[:, self.channels :]], 1), t, labels)
