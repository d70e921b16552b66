"""Settings that suit a data set; every one of them can be overridden on the command line."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ebm_app.nets.unet import max_resolutions
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

#: data set -> its settings
PRESETS: dict[str, dict[str, Any]] = {
    "digits": dict(block_out_channels=(48, 64), dropout=0.05, eps=1e-6)
    | dict(input_frequencies=(1.0, 2.0, 4.25, 8.5, 17.0))
    | dict(augmentation="affine", adam_weight_decay=0.01, max_train_steps=8000)
    | dict(validation_steps=1000, checkpointing_steps=1000),
}
#: In a latent space the bins have no common width, and a shifted image has an unlikely u. Bins are
#: wide there, so that a larger margin blurs none; u is white, its image shows a network more.
LATENT: dict[str, Any] = dict(input_frequencies=(), augmentation="none", net_input="x", eps=1e-3)
IMAGES: dict[str, Any] = (
    dict(max_train_steps=100_000, train_batch_size=256, learning_rate=1e-3, lr_warmup_steps=1000)
    | dict(validation_steps=2500, checkpointing_steps=2500, logging_steps=50)
    | dict(validation_images=500, validation_repeats=1)
)
#: what the networks of two million weights and more are trained with
WIDE: dict[str, Any] = dict(learning_rate=2e-4, ema_decay=0.9999, mixed_precision="bf16")


class Size(NamedTuple):
    """A network by its budget: channels at each resolution as far as images have it, residual
    blocks of each, the sides at which it attends, and the settings of its training."""

    channels: tuple[int, ...]
    layers_per_block: int
    attended: range = range(0)
    training: dict[str, Any] = {}


#: about 1.5, 36 and 115 million weights: the second after Ho et al. 2020 (arXiv:2006.11239,
#: CIFAR-10), the third after Nichol and Dhariwal 2021 (arXiv:2102.09672, ImageNet 64)
SIZES = {
    "small": Size((32, 64, 64), 2),
    "base": Size((128, 256, 256, 256), 2, range(9, 17), WIDE),
    "large": Size((128, 256, 384, 512), 3, range(7, 17), WIDE),
}
#: channels of an attention head of these
HEAD = 64


def suited_to_levels(num_levels: int) -> dict[str, Any]:
    """Frequencies and margin for L levels, whose bins are 2 / L wide in the ambient space.

    The frequencies fall by halves from L / 2, a period for each bin, to 2: noise between the width
    of a bin and that of a stroke shows in them. At the last time the noise, of variance 2 eps, is
    1 / 78 of a bin, whatever L is.

    >>> suited_to_levels(16)
    {'input_frequencies': (2.0, 4.0, 8.0), 'eps': 1.28e-06}
    """
    count = max(1, math.floor(math.log2(num_levels / 2)))
    return {
        "input_frequencies": tuple(num_levels / 2**power for power in range(count, 0, -1)),
        "eps": 5e-9 * (256 / num_levels) ** 2,
    }


def sized(size: Size, image_shape: Sequence[int]) -> dict[str, Any]:
    """Settings of the network of a size for images (C, H, W)."""
    side = max(image_shape[1:])
    channels = size.channels[: max_resolutions(*image_shape[1:])]
    attended = [level for level in range(len(channels)) if side >> level in size.attended]
    net: dict[str, Any] = dict(
        block_out_channels=channels,
        layers_per_block=size.layers_per_block,
        attention_levels=tuple(attended),
        dropout=0.1,
    )
    if attended:
        net |= dict(num_heads=channels[-1] // HEAD, norm_num_groups=32)
    return net


def preset(dataset: str, image_shape: Sequence[int], num_levels: int, size: str) -> dict[str, Any]:
    """Settings for a data set of images (C, H, W) with L levels, and a key of ``SIZES``."""
    chosen = SIZES[choose("size", size, SIZES)]
    if dataset in PRESETS:
        if size != "small":
            raise UserError(f"{dataset} has a network of its own: leave size {size} out")
        return PRESETS[dataset]
    network = sized(chosen, image_shape) | suited_to_levels(num_levels)
    return network | IMAGES | chosen.training
