"""Recipes: the default settings of a training run for a data set."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ebm_app.config import max_resolutions
from ebm_app.training.settings import AUTO, Train
from ebm_app.utils.errors import UserError
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import choose

#: Image shape and number of grey levels of the named data sets, for the defaults in ``--help``
FORMATS = {
    "digits": ((1, 8, 8), 17),
    "mnist": ((1, 28, 28), 256),
    "fashion_mnist": ((1, 28, 28), 256),
    "cifar10": ((3, 32, 32), 256),
}
#: Recipe of digits, which has a network of its own
DIGITS = Train(
    dataset="digits",
    size="small",
    max_train_steps=8000,
    train_batch_size=64,
    optimizer="muon",
    learning_rate=4e-3,
    adam_weight_decay=0.01,
    augmentation="affine",
    block_out_channels=(48, 64),
    dropout=0.05,
    input_frequencies=(1.0, 2.0, 4.25, 8.5, 17.0),
)
#: Network of digits for short runs
DIGITS_TINY: dict[str, Any] = dict(size="tiny", block_out_channels=(32, 48))
#: Recipe of all other data sets, compared in docs/training.md ("Recipes")
IMAGES = Train(
    max_train_minutes=60.0,
    train_batch_size=32,
    optimizer="muon",
    learning_rate=4e-3,
    validation_images=200,
    validation_repeats=1,
)
#: Settings of the sizes "base" and "large", for GPUs; learning rate and dropout as in the papers
#: below
WIDE: dict[str, Any] = dict(
    max_train_minutes=480.0,
    optimizer="adam",
    train_batch_size=128,
    learning_rate=2e-4,
    dropout=0.1,
)
#: Settings in a latent space, where the bins of the grey levels are wide and of different widths:
#: Fourier features do not help, and a larger t_margin does not blur the bins. Latent points are
#: white, so the network reads the decoded image. Shifted images have unlikely latent points, so
#: there is no augmentation.
LATENT: dict[str, Any] = dict(
    input_frequencies=(),
    augmentation="none",
    net_input="x",
    t_margin=1e-3,
    dequantisation="uniform",
    prediction="moments",
)


class Size(NamedTuple):
    """Size of a network: channels and residual blocks at each resolution, sides of the feature
    maps with self-attention, and training settings."""

    channels: tuple[int, ...]
    layers_per_block: int
    attention_sides: range = range(0)
    training: dict[str, Any] = {}


#: Sizes of about 0.5, 1, 36 and 115 million weights. "base" follows Ho et al. 2020
#: (arXiv:2006.11239, CIFAR-10), "large" Nichol and Dhariwal 2021 (arXiv:2102.09672, ImageNet 64).
SIZES = {
    "tiny": Size((24, 48, 48), 1),
    "small": Size((32, 64, 64), 1),
    "base": Size((128, 256, 256, 256), 2, range(9, 17), WIDE),
    "large": Size((128, 256, 384, 512), 3, range(7, 17), WIDE),
}
#: Minutes of a run on a CPU from which on "small" is better than "tiny". On two cores with AVX2,
#: "tiny" is better for MNIST after 2 and 10 minutes and "small" after 60; for digits, "tiny" after
#: 2 minutes and "small" after 10.
SMALL_MINUTES, SMALL_MINUTES_DIGITS = 30.0, 5.0
#: Settings of the network of a size
OF_SIZE = ("block_out_channels", "layers_per_block", "attention_levels", "num_heads")
OF_SIZE += ("norm_num_groups",)
#: Settings that follow from the shape and the grey levels of the images
OF_IMAGES = (*OF_SIZE, "input_frequencies")
#: Channels per attention head
HEAD_CHANNELS = 64


def recipe(
    dataset: str,
    image_shape: Sequence[int],
    num_levels: int,
    size: str = "small",
    space: str = "ambient",
) -> Train:
    """Return the default settings for a data set of images (C, H, W) with ``num_levels`` grey
    levels.

    >>> recipe("mnist", (1, 28, 28), 256).block_out_channels
    (32, 64, 64)

    Args:
        dataset: name of the data set; "digits" has a network of its own.
        size: size of the network, a key of ``SIZES``. For "auto", see ``fitting_size``.
        space: space of the model; other than "ambient" for a flow's latent space.

    Raises:
        UserError: for an unknown size, or a size other than "tiny" and "small" for "digits".
    """
    chosen = SIZES[choose("size", size, SIZES)]
    if dataset == "digits":
        if size not in ("tiny", "small"):
            raise UserError(f"Data set digits has no network of size {size}. Use tiny or small.")
        base = replace(DIGITS, **DIGITS_TINY) if size == "tiny" else DIGITS
    else:
        network = network_settings(chosen, image_shape)
        frequencies = input_frequencies(num_levels)
        base = replace(
            IMAGES, dataset=dataset, size=size, input_frequencies=frequencies, **network
        )
        base = replace(base, **chosen.training)
    return base if space == "ambient" else replace(base, space=space, **LATENT)


def fitting_size(run: Train) -> str:
    """Return the size of the network of a run: "tiny" instead of "auto" for few minutes on a CPU,
    and "small" for other runs.

    >>> fitting_size(Train(dataset="mnist", max_train_minutes=10.0, device="cpu"))
    'tiny'
    """
    if run.size != AUTO:
        return run.size
    limit = SMALL_MINUTES_DIGITS if run.dataset == "digits" else SMALL_MINUTES
    if run.max_train_minutes is None or run.max_train_minutes >= limit:
        return "small"
    return "tiny" if resolve_device(run.device) == "cpu" else "small"


def input_frequencies(num_levels: int) -> tuple[float, ...]:
    """Return the Fourier frequencies for L grey levels, whose bins have width 2 / L in the ambient
    space: L / 2 (one period per bin), L / 4, ..., 2, so the network resolves noise from the width
    of a bin to that of a stroke.

    >>> input_frequencies(16)
    (2.0, 4.0, 8.0)
    """
    count = max(1, math.floor(math.log2(num_levels / 2)))
    return tuple(num_levels / 2**power for power in range(count, 0, -1))


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
