"""U-Net (x, t) -> image, based on diffusers' UNet2DModel, and networks of decoded images."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ebm_app.config import UNetConfig, max_resolutions
from ebm_app.utils.errors import UserError


class UNet(nn.Module):
    """UNet2DModel for times in [0, 1], with validated sizes and second derivatives.

    Attention uses fused kernels, except for inputs that require a gradient, because fused kernels
    have no second derivatives. The last convolution is initialised to zero.

    Args:
        image_shape: (C, H, W).
        out_channels: channels of the output.
        config: see ``UNetConfig``.
        num_classes: number of class labels; 0 for an unconditional network.

    Raises:
        UserError: if the image cannot be halved to each resolution, or groups or heads do not
            divide the channels.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        out_channels: int,
        config: UNetConfig | None = None,
        num_classes: int = 0,
    ) -> None:
        # importing diffusers takes seconds, and --help does not need it; by its full path, because
        # `from diffusers import` fails in threads
        from diffusers.models.unets.unet_2d import UNet2DModel

        super().__init__()
        config = UNetConfig() if config is None else config
        channels, height, width = image_shape
        check_config(config, height, width)
        self.config, self.num_classes = config, num_classes
        resolutions = range(len(config.block_out_channels))
        has_attention = [index in config.attention_levels for index in resolutions]
        self.unet = UNet2DModel(
            sample_size=(height, width),
            in_channels=channels,
            out_channels=out_channels,
            block_out_channels=tuple(config.block_out_channels),
            layers_per_block=config.layers_per_block,
            down_block_types=tuple(
                "AttnDownBlock2D" if a else "DownBlock2D" for a in has_attention
            ),
            up_block_types=tuple(
                "AttnUpBlock2D" if a else "UpBlock2D" for a in has_attention[::-1]
            ),
            add_attention=any(has_attention),
            attention_head_dim=config.block_out_channels[-1] // config.num_heads,
            norm_num_groups=config.norm_num_groups,
            dropout=config.dropout,
            # the last embedding represents no label
            num_class_embeds=num_classes + 1 if num_classes else None,
        )
        nn.init.zeros_(self.unet.conv_out.weight)
        nn.init.zeros_(self.unet.conv_out.bias)

    @property
    def last_layer(self) -> nn.Conv2d:
        """Last convolution of the network."""
        return self.unet.conv_out

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Evaluate the network.

        Args:
            x: (B, C, H, W). t: (B,) floating-point times in [0, 1].
            labels: (B,) int64, with -1 for images without a label; None if no image has a label.

        Returns:
            (B, out_channels, H, W).
        """
        embedded = None
        if self.num_classes:
            labels = torch.full((len(x),), -1, device=x.device) if labels is None else labels
            embedded = torch.where(labels < 0, self.num_classes, labels)
        needs_gradient = self.config.attention_levels and (x.requires_grad or t.requires_grad)
        with sdpa_kernel(SDPBackend.MATH) if needs_gradient else nullcontext():
            return self.unet(x, t * self.config.t_scale, class_labels=embedded).sample


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


#: Inputs of a network in a latent space
NET_INPUTS = {"u": "the latent point", "x": "its image"}
#: Networks by name, with the constructor arguments and methods of ``UNet``
NETS: dict[str, type[nn.Module]] = {"unet": UNet}


def check_config(config: UNetConfig, height: int, width: int) -> None:
    """Raise a UserError if the sizes in ``config`` do not match each other or the image."""
    resolutions = len(config.block_out_channels)
    factor = 2 ** (resolutions - 1)
    if height % factor or width % factor:
        raise UserError(
            f"Images of {height}x{width} cannot be halved {resolutions - 1} times. Use at most "
            f"{max_resolutions(height, width)} entries of block_out_channels, or resize images."
        )
    for channels in config.block_out_channels:
        if channels % config.norm_num_groups:
            raise UserError(
                f"norm_num_groups {config.norm_num_groups} does not divide {channels} channels. "
                "Use a common divisor of all channels."
            )
    if any(index >= resolutions for index in config.attention_levels):
        raise UserError(f"attention_levels must be between 0 and {resolutions - 1}.")
    if config.attention_levels:
        head_dim, remainder = divmod(config.block_out_channels[-1], config.num_heads)
        attended = {config.block_out_channels[index] for index in config.attention_levels}
        if remainder or any(channels % head_dim for channels in attended):
            raise UserError(
                f"num_heads {config.num_heads} must divide the last of {config.block_out_channels}"
                " channels, and the quotient must divide those of resolutions with attention."
            )
