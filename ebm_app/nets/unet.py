"""A U-Net (x, t) -> image on diffusers' UNet2DModel, safe for a time in [0, 1] and for second
derivatives."""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ebm_app.config import UNetConfig
from ebm_app.utils.errors import UserError


class UNet(nn.Module):
    """UNet2DModel with a float time, checked sizes and fused attention, but for inputs whose
    gradient is taken: the fused kernels have no second derivative.

    The last convolution starts at zero, so that training starts from the zero function.

    Args:
        image_shape: (C, H, W).
        out_channels: channels of the output.
        config: see ``UNetConfig``.
        num_classes: K, of labels 0..K - 1 that the network is told; 0 for none.

    Raises:
        UserError: where the image cannot be halved to every resolution, or where groups or
            heads do not divide the channels.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        out_channels: int,
        config: UNetConfig | None = None,
        num_classes: int = 0,
    ) -> None:
        # seconds to import: a script's --help does without
        from diffusers import UNet2DModel

        super().__init__()
        config = UNetConfig() if config is None else config
        channels, height, width = image_shape
        check_config(config, height, width)
        self.config, self.num_classes = config, num_classes
        kinds = [
            index in config.attention_levels for index in range(len(config.block_out_channels))
        ]
        self.unet = UNet2DModel(
            sample_size=(height, width),
            in_channels=channels,
            out_channels=out_channels,
            block_out_channels=tuple(config.block_out_channels),
            layers_per_block=config.layers_per_block,
            down_block_types=tuple("AttnDownBlock2D" if a else "DownBlock2D" for a in kinds),
            up_block_types=tuple("AttnUpBlock2D" if a else "UpBlock2D" for a in kinds[::-1]),
            add_attention=any(kinds),
            attention_head_dim=config.block_out_channels[-1] // config.num_heads,
            norm_num_groups=config.norm_num_groups,
            dropout=config.dropout,
            # one more, which stands for no label
            num_class_embeds=num_classes + 1 if num_classes else None,
        )
        nn.init.zeros_(self.unet.conv_out.weight)
        nn.init.zeros_(self.unet.conv_out.bias)

    @property
    def last_layer(self) -> nn.Conv2d:
        """The convolution whose outputs are those of the network."""
        return self.unet.conv_out

    def uses_labels(self, t: Tensor) -> bool:
        """Whether labels change what comes out at any of these times."""
        return self.num_classes > 0

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """x (B, C, H, W), t (B,) floating point in [0, 1] and labels (B,) int64, of which -1 and
        None are no label -> (B, out_channels, H, W)."""
        known = None
        if self.num_classes:
            labels = torch.full((len(x),), -1, device=x.device) if labels is None else labels
            known = torch.where(labels < 0, self.num_classes, labels)
        twice = self.config.attention_levels and (x.requires_grad or t.requires_grad)
        with sdpa_kernel(SDPBackend.MATH) if twice else nullcontext():
            return self.unet(x, t * self.config.t_scale, class_labels=known).sample


#: networks by the name of their kind: of the arguments and the methods of ``UNet``
NETS: dict[str, type[nn.Module]] = {"unet": UNet}


def check_config(config: UNetConfig, height: int, width: int) -> None:
    """Raise a UserError where the sizes of ``config`` do not fit each other or an image of this
    size."""
    resolutions = len(config.block_out_channels)
    factor = 2 ** (resolutions - 1)
    if height % factor or width % factor:
        raise UserError(
            f"images of {height}x{width} cannot be halved {resolutions - 1} times: give at most "
            f"{max_resolutions(height, width)} entries of block_out_channels, or resize the images"
        )
    for channels in config.block_out_channels:
        if channels % config.norm_num_groups:
            raise UserError(
                f"norm_num_groups {config.norm_num_groups} does not divide {channels} channels"
            )
    if any(index >= resolutions for index in config.attention_levels):
        raise UserError(f"attention_levels must lie between 0 and {resolutions - 1}")
    if config.attention_levels:
        head_dim, rest = divmod(config.block_out_channels[-1], config.num_heads)
        attended = {config.block_out_channels[index] for index in config.attention_levels}
        if rest or any(channels % head_dim for channels in attended):
            raise UserError(
                f"num_heads {config.num_heads} must divide the last channels, and their quotient "
                f"the channels of every resolution with attention: {config.block_out_channels}"
            )


def max_resolutions(height: int, width: int) -> int:
    """How many resolutions an image of this size admits: 1 + the times that it can be halved."""
    common = math.gcd(height, width)
    return 1 + (common & -common).bit_length() - 1
