"""A network that reads the image of a latent point in its place."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Decoded(nn.Module):
    """(u, t) -> net(2 x - 1, t) with x the image of u.

    A bijection that does not depend on t changes no time score: the network may read either side
    (paper, appendix F.5).

    Args:
        net: the network. decode: (B, C, H, W) -> (B, C, H, W); not a part of this module.
        channels: C; what follows in the network's input is passed on.
    """

    note = "the image of u"
    #: how often C more channels the network has than without the image
    more = 0

    def __init__(self, net: nn.Module, decode: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.net, self.decode, self.channels = net, decode, channels

    @property
    def last_layer(self) -> nn.Conv2d:
        """That of the network."""
        return self.net.last_layer

    def forward(self, u: Tensor, t: Tensor) -> Tensor:
        """u (B, C + more, H, W), t (B,) -> the network's output."""
        image = 2 * self.decode(u[:, : self.channels]) - 1
        return self.net(torch.cat([image, self.beside(u)], 1), t)

    def beside(self, u: Tensor) -> Tensor:
        """What of u the network sees beside the image."""
        return u[:, self.channels :]


class Joined(Decoded):
    """(u, t) -> net((2 x - 1, u), t): the network reads both sides."""

    note, more = "the image and u", 1

    def beside(self, u: Tensor) -> Tensor:
        return u


#: what a network reads: the latent point u, its image x, or both
NET_INPUTS: dict[str, type[Decoded] | None] = {"u": None, "x": Decoded, "ux": Joined}
