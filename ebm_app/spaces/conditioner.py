"""A small convolutional network that reads a part of an image."""

import torch
from torch import Tensor, nn

NUM_BLOCKS = 2


class Conditioner(nn.Module):
    """(B, C, H, W) -> (B, C_out, H, W), a function of the components inside a mask only.

    3x3 convolutions with residual blocks in between, in the dtype of the weights. The mask and two
    coordinates are further channels of the input, so that the output can differ by position. The
    last convolution starts at zero, and so does the function.

    Args:
        mask: (C, H, W) bool. out_channels: C_out. hidden: channels of the blocks.

    Sources: He et al. 2016, arXiv:1603.05027, for the blocks, here without normalisation, as an
    image must not depend on its batch; Liu et al. 2018, arXiv:1807.03247, for the coordinates.
    """

    def __init__(self, mask: Tensor, out_channels: int, hidden: int) -> None:
        super().__init__()
        channels, height, width = mask.shape
        rows = torch.linspace(-1, 1, height)[None, :, None].expand(1, height, width)
        columns = torch.linspace(-1, 1, width)[None, None, :].expand(1, height, width)
        position = torch.cat([mask.float(), rows, columns])[None]
        # not a part of the state: they follow from the arguments
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("position", position, persistent=False)
        self.first = _convolution(2 * channels + 2, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.SiLU(), _convolution(hidden, hidden), nn.SiLU(), _convolution(hidden, hidden)
            )
            for _ in range(NUM_BLOCKS)
        )
        self.last = _convolution(hidden, out_channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) of any floating dtype -> (B, C_out, H, W)."""
        seen = torch.where(self.mask, x, 0).to(self.position.dtype)
        h = self.first(torch.cat([seen, self.position.expand(len(x), -1, -1, -1)], 1))
        for block in self.blocks:
            h = h + block(h)
        return self.last(nn.functional.silu(h))


def _convolution(channels_in: int, channels_out: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1)
