"""A U-Net (x, t) -> image on diffusers' UNet2DModel, safe for a time in [0, 1] and for second
derivatives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, Len, Lt
from pydantic import ConfigDict
from torch import Tensor, nn

from ebm_app.io.errors import UserError
from ebm_app.io.fields import STRICT, Positive, Share, setting

#: resolutions of a U-Net at most
MOST_RESOLUTIONS = 8
Width = Annotated[int, Ge(1), Le(4096)]
Widths = Annotated[tuple[Width, ...], Len(1, MOST_RESOLUTIONS)]
Layers = Annotated[int, Ge(1), Le(16)]
Level = Annotated[int, Ge(0), Lt(MOST_RESOLUTIONS)]
Levels = Annotated[tuple[Level, ...], Len(0, MOST_RESOLUTIONS)]


@dataclass(frozen=True)
class UNetConfig:
    """Shape of a ``UNet``.

    Args:
        block_out_channels: channels at each resolution, the image's own first; each further one
            is half of the one before.
        layers_per_block: residual blocks at each resolution.
        attention_levels: the resolutions with self-attention, counted from 0.
        num_heads: attention heads.
        norm_num_groups: groups of the group normalisations.
        dropout: dropout probability inside the residual blocks.
        t_scale: the embedded time is t_scale * t; it sets the highest frequency in t, in radians,
            and with it how many quadrature nodes the ripples of the network ask for.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    block_out_channels: Widths = setting("channels at each resolution", (32, 64))
    layers_per_block: Layers = setting("residual blocks at each resolution", 1)
    attention_levels: Levels = setting(
        "resolutions with self-attention, counted from 0", (), rare=True
    )
    num_heads: Width = setting("attention heads", 4, rare=True)
    norm_num_groups: Width = setting("groups of the group normalisations", 8, rare=True)
    dropout: Share = setting("dropout of the residual blocks", 0.0)
    t_scale: Positive = setting("factor of the time inside the embedding", 25.0, rare=True)


class UNet(nn.Module):
    """UNet2DModel with a float time, checked sizes and attention that can be differentiated twice.

    The last convolution starts at zero, so that training starts from the zero function.

    Args:
        image_shape: (C, H, W).
        out_channels: channels of the output.
        config: see ``UNetConfig``.

    Raises:
        UserError: where the image cannot be halved to every resolution, or where groups or
            heads do not divide the channels.
    """

    def __init__(
        self, image_shape: Sequence[int], out_channels: int, config: UNetConfig | None = None
    ) -> None:
        # seconds to import: a script's --help does without
        from diffusers import UNet2DModel
        from diffusers.models.attention_processor import Attention, AttnProcessor

        super().__init__()
        config = UNetConfig() if config is None else config
        channels, height, width = image_shape
        check_config(config, height, width)
        self.image_shape, self.config = tuple(image_shape), config
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
        )
        # the fused attention kernels have no second derivative
        for module in self.unet.modules():
            if isinstance(module, Attention):
                module.set_processor(AttnProcessor())
        nn.init.zeros_(self.unet.conv_out.weight)
        nn.init.zeros_(self.unet.conv_out.bias)

    @property
    def last_layer(self) -> nn.Conv2d:
        """The convolution whose outputs are those of the network."""
        return self.unet.conv_out

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, C, H, W), t (B,) floating point in [0, 1] -> (B, out_channels, H, W)."""
        if not t.is_floating_point():
            raise TypeError("the time of a U-Net must be a floating-point tensor")
        return self.unet(x, t * self.config.t_scale).sample


def check_config(config: UNetConfig, height: int, width: int) -> None:
    """Raise a UserError where the sizes of ``config`` do not fit each other or an image of this
    size."""
    resolutions = len(config.block_out_channels)
    if resolutions == 0:
        raise UserError("a U-Net needs at least one resolution: give block_out_channels")
    counts = (config.layers_per_block, config.num_heads, config.norm_num_groups)
    if min(*counts, *config.block_out_channels) < 1 or not 0 <= config.dropout < 1:
        raise UserError(
            "a U-Net needs block_out_channels, layers_per_block, num_heads and norm_num_groups of "
            "at least 1 and a dropout in [0, 1)"
        )
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
    if any(not 0 <= index < resolutions for index in config.attention_levels):
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
