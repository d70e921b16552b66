"""Network of a model in a latent space whose input is the decoded image."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Inputs of a network in a latent space
NET_INPUTS = {"u": "the latent point", "x": "its image"}


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
