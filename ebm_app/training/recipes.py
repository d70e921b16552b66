"""Recipes, the default training settings of a data set, and the cost of a network."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from ebm_app.config import EBMConfig
from ebm_app.nets.build import num_channels
from ebm_app.nets.unet import NETS, max_resolutions
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

#: Settings of data sets with their own network
RECIPES: dict[str, dict[str, Any]] = {
    "digits": dict(block_out_channels=(48, 64), dropout=0.05, prediction="levels")
    | dict(input_frequencies=(1.0, 2.0, 4.25, 8.5, 17.0), dequantisation="truncated_normal")
    | dict(augmentation="affine", optimizer="muon", learning_rate=4e-3, train_batch_size=64)
    | dict(adam_weight_decay=0.01, max_train_steps=8000)
}
#: Settings in a latent space, where the bins of the grey levels are wide and of different widths:
#: Fourier features do not help, and a larger eps does not blur the bins. Latent points are white,
#: so the network reads the decoded image. Shifted images have unlikely latent points, so there is
#: no augmentation.
LATENT: dict[str, Any] = dict(
    input_frequencies=(), augmentation="none", net_input="x", eps=1e-3
) | dict(dequantisation="uniform", prediction="moments")
#: Settings of all other data sets, compared in docs/results.md ("Recipes")
IMAGES: dict[str, Any] = (
    dict(max_train_minutes=60.0, optimizer="muon", train_batch_size=32, learning_rate=4e-3)
    | dict(dequantisation="truncated_normal", prediction="levels")
    | dict(validation_images=200, validation_repeats=1)
)
#: Settings of the sizes "base" and "large", for GPUs; learning rate and dropout as in the papers
#: below.
WIDE: dict[str, Any] = dict(
    max_train_minutes=480.0, optimizer="adam", train_batch_size=128, learning_rate=2e-4
) | dict(dropout=0.1)


class Size(NamedTuple):
    """Size of a network: channels and residual blocks at each resolution, sides of the feature
    maps with self-attention, and training settings."""

    channels: tuple[int, ...]
    layers_per_block: int
    attention_sides: range = range(0)
    training: dict[str, Any] = {}


#: Sizes of about 1, 36 and 115 million weights. "base" follows Ho et al. 2020 (arXiv:2006.11239,
#: CIFAR-10), "large" Nichol and Dhariwal 2021 (arXiv:2102.09672, ImageNet 64).
SIZES = {
    "small": Size((32, 64, 64), 1),
    "base": Size((128, 256, 256, 256), 2, range(9, 17), WIDE),
    "large": Size((128, 256, 384, 512), 3, range(7, 17), WIDE),
}
#: Channels per attention head
HEAD_CHANNELS = 64


def make_recipe(
    dataset: str, image_shape: Sequence[int], num_levels: int, size: str
) -> dict[str, Any]:
    """Return the settings for a data set of images (C, H, W) with ``num_levels`` grey levels, for
    a network size in ``SIZES``."""
    chosen = SIZES[choose("size", size, SIZES)]
    if dataset in RECIPES:
        if size != "small":
            raise UserError(f"Data set {dataset} has its own network. Leave out --size {size}.")
        return RECIPES[dataset]
    network = network_settings(chosen, image_shape) | level_settings(num_levels)
    return network | IMAGES | chosen.training


def level_settings(num_levels: int) -> dict[str, Any]:
    """Return Fourier frequencies and eps for L grey levels. Their bins have width 2 / L in the
    ambient space.

    The frequencies are L / 2 (one period per bin), L / 4, ..., 2, so the network resolves noise
    from the width of a bin to that of a stroke. At the last time, t = 1 - eps, the noise has
    variance 2 eps, a standard deviation of 1 / 78 of a bin for every L.

    >>> level_settings(16)
    {'input_frequencies': (2.0, 4.0, 8.0), 'eps': 1.28e-06}
    """
    count = max(1, math.floor(math.log2(num_levels / 2)))
    return {
        "input_frequencies": tuple(num_levels / 2**power for power in range(count, 0, -1)),
        "eps": 5e-9 * (256 / num_levels) ** 2,
    }


def network_settings(size: Size, image_shape: Sequence[int]) -> dict[str, Any]:
    """Return the network settings of a size for images (C, H, W), with as many resolutions as
    the image can be halved to."""
    side = max(image_shape[1:])
    channels = size.channels[: max_resolutions(*image_shape[1:])]
    attended = [level for level in range(len(channels)) if side >> level in size.attention_sides]
    net: dict[str, Any] = dict(
        block_out_channels=channels,
        layers_per_block=size.layers_per_block,
        attention_levels=tuple(attended),
    )
    if attended:
        net |= dict(num_heads=channels[-1] // HEAD_CHANNELS, norm_num_groups=32)
    return net


def network_cost(config: EBMConfig) -> dict[str, int]:
    """Return the number of weights of the network, and of operations per training image: a forward
    and a backward pass, two per multiply-add. Runs on the meta device.

    >>> network_cost(EBMConfig("digits", (1, 8, 8), num_levels=17))
    {'weights': 634562, 'operations': 90087424}
    """
    (_, height, width), (inputs, outputs) = config.image_shape, num_channels(config)
    with torch.device("meta"):
        net = NETS[config.network]((inputs, height, width), outputs, config.net)
        x, t = torch.zeros(1, inputs, height, width), torch.zeros(1)
    with FlopCounterMode(display=False) as counter:
        net(x, t).sum().backward()
    weights = sum(weight.numel() for weight in net.parameters())
    return {"weights": weights, "operations": counter.get_total_flops()}
