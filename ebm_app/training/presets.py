"""Settings that suit a data set; every one of them can be overridden on the command line."""

import math
from collections.abc import Sequence
from typing import Any

from ebm_app.models.unet import max_resolutions

#: data set -> (settings of the model and its network, of the training)
PRESETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "digits": (
        dict(block_out_channels=(48, 64), dropout=0.05, eps=1e-6)
        | dict(input_frequencies=(1.0, 2.0, 4.25, 8.5, 17.0)),
        dict(augmentation="affine", adam_weight_decay=0.01, max_train_steps=8000)
        | dict(validation_steps=1000, checkpointing_steps=1000),
    ),
}
#: In a latent space the bins have no common width, and a shifted image has an unlikely u. Bins are
#: wide there, so that a larger margin blurs none; u is white, its image shows a network more.
LATENT: dict[str, Any] = dict(input_frequencies=(), augmentation="none", net_input="x", eps=1e-3)
LARGE = (
    dict(layers_per_block=2, dropout=0.1),
    dict(max_train_steps=100_000, train_batch_size=256, learning_rate=1e-3, lr_warmup_steps=1000)
    | dict(validation_steps=2500, checkpointing_steps=2500, logging_steps=50)
    | dict(validation_images=500, validation_repeats=1),
)
#: (data set, kind of flow) -> (arguments of the flow, overrides of LoopConfig)
FLOWS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    # 1,400 images: what is learned after some hundred steps does not carry over to others, and
    # where more than two couplings have learned from them an energy model finds nothing more
    ("digits", "spline"): (
        {"layers": 2, "hidden": 16},
        {"max_train_steps": 600, "validation_steps": 100, "checkpointing_steps": 300},
    ),
}


def flow_preset(dataset: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arguments of a flow, training settings) for a data set; empty where the defaults suit."""
    return FLOWS.get((dataset, kind), ({}, {}))


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


def preset(
    dataset: str, image_shape: Sequence[int], num_levels: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(model settings, training settings) for a data set of images (C, H, W) with L levels."""
    if dataset in PRESETS:
        return PRESETS[dataset]
    model, training = LARGE
    resolutions = min(3, max_resolutions(*image_shape[1:]))
    channels = {"block_out_channels": (32, 64, 64)[:resolutions]}
    return {**model, **suited_to_levels(num_levels), **channels}, training
