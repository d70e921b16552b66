"""A network that reads the image of a latent point in its place."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: what a network reads in a latent space
NET_INPUTS = {"u": "the latent point", "x": "its image"}


class Decoded(nn.Module):
    """(u, t) -> net(2 x - 1, t) with x the image of u.

    A bijection that does not depend on t changes no time score: the network may read either side
    (paper, appendix F.5).

    Args:
        net: the network. decode: (B, C, H, W) -> (B, C, H, W); not a part of this module.
        channels: C; what follows in the network's input is passed on.
    """

    def __init__(self, net: nn.Module, decode: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.net, self.decode, self.channels = net, decode, channels

    @property
    def last_layer(self) -> nn.Conv2d:
        """That of the network."""
        return self.net.last_layer

    def uses_labels(self, t: Tensor) -> bool:
        """Whether labels change what comes out at any of these times."""
        return self.net.uses_labels(t)

    def forward(self, u: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """u (B, C + more, H, W), t (B,) -> the network's output."""
        image = 2 * self.decode(u[:, : self.channels]) - 1
        return self.net(torch.cat([image, u[:, self.channels :]], 1), t, labels)
