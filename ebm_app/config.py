"""Configurations of models: frozen dataclasses that validate keys and values.

``EBMConfig`` describes a model and is stored with its weights. The settings of its training are in
``ebm_app.training.settings``.
"""

import math
from typing import Annotated

from annotated_types import Ge, Gt, Le, Len, Lt

from ebm_app.utils.errors import shorten
from ebm_app.utils.fields import (
    LARGEST_SIDE,
    MAX_CLASSES,
    Float,
    ImageShape,
    Int,
    Nodes,
    NonNegative,
    Number,
    NumLevels,
    Positive,
    PositiveInt,
    Probability,
    Share,
    configuration,
)

FORMAT_VERSION = 1
MAX_RESOLUTIONS = 8
#: Cycles; above 10^6, float32 loses the phase
Frequency = Annotated[Float, Gt(0), Le(1e6)]
Frequencies = Annotated[tuple[Frequency, ...], Len(0, 64)]
Margin = Annotated[Float, Ge(1e-12), Lt(0.5)]
#: Second moment of the data; outside this range, a path has only noise or only data
Moment = Annotated[Float, Ge(1e-6), Le(1e6)]
Width = Annotated[Int, Ge(1), Le(4096)]
Widths = Annotated[tuple[Width, ...], Len(1, MAX_RESOLUTIONS)]
Layers = Annotated[Int, Ge(1), Le(32)]
Classes = Annotated[Int, Ge(0), Le(MAX_CLASSES)]
ClassNames = Annotated[tuple[str, ...], Len(0, MAX_CLASSES)]
ClassFrequencies = Annotated[tuple[Probability, ...], Len(0, MAX_CLASSES)]
Resolution = Annotated[Int, Ge(0), Lt(MAX_RESOLUTIONS)]
Resolutions = Annotated[tuple[Resolution, ...], Len(0, MAX_RESOLUTIONS)]


@configuration
class PathConfig:
    """Path, by its name in ``PATHS``, and the second moment c of the data that it assumes."""

    name: str = "linear_vp"
    c: Moment = 1.0


@configuration
class UNetConfig:
    """Architecture of a ``UNet``.

    Args:
        block_out_channels: channels at each resolution. The first resolution is that of the image;
            each further one is half the previous one.
        layers_per_block: residual blocks at each resolution.
        attention_levels: resolutions with self-attention, from 0.
        num_heads: attention heads.
        norm_num_groups: groups of the group normalisation.
        dropout: dropout of the residual blocks.
        t_scale: factor of the embedded time. It sets the highest frequency in t, in radians, and
            thereby the number of quadrature nodes that a likelihood needs.
    """

    block_out_channels: Widths = (32, 64)
    layers_per_block: Layers = 1
    attention_levels: Resolutions = ()
    num_heads: Width = 4
    norm_num_groups: Width = 8
    dropout: Share = 0.0
    t_scale: Positive = 25.0


@configuration
class Calibration:
    """Calibration offset of an energy network at its last time: the log density minus the
    variational bound from its score, in nats, over validation images.

    Args:
        mean: mean of the offset, which the estimator ``energy`` subtracts.
        stderr: standard error of the mean.
        spread: standard deviation over images.
    """

    mean: Number = 0.0
    stderr: NonNegative = 0.0
    spread: NonNegative = 0.0


@configuration
class EBMConfig:
    """Configuration of an energy-based model of images, from which it is built.

    Args:
        dataset, image_shape, num_levels: name, (C, H, W) and number of grey levels of the images.
        path, net: path and network.
        space: space of the model, a key of ``SPACES``.
        net_input: input of the network in a latent space: "u", the point, or "x", its image.
        dequantisation: density within a grey level, a key of ``DEQUANTISERS``.
        t_margin: margin of the times: the last one is 1 - t_margin.
        network: architecture, a key of ``NETS``.
        prediction: output of the network, a key of ``PREDICTIONS`` or that of energy networks.
        time_input: time input of the network, a key of ``TIME_INPUTS``.
        input_frequencies: frequencies of the Fourier features of the input, in cycles.
        num_nodes: quadrature nodes of a likelihood.
        stein_head: whether the network predicts the Stein score.
        condition_dim: number of augmentation parameters that the network receives.
        num_classes: number of classes; 0 for an unconditional model.
        class_names: names of the classes, if the data set has any.
        class_frequencies: frequencies of the classes among the training images, the default
            distribution of the labels of samples; empty for equal frequencies.
        decoder: prediction of the decoder of an energy network.
        calibration: calibration offset of an energy network.
    """

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    path: PathConfig = PathConfig()
    net: UNetConfig = UNetConfig()
    space: str = "ambient"
    net_input: str = "u"
    dequantisation: str = "uniform"
    t_margin: Margin = 5e-7
    network: str = "unet"
    prediction: str = "moments"
    time_input: str = "arc_length"
    input_frequencies: Frequencies = ()
    num_nodes: Nodes = 32
    stein_head: bool = True
    condition_dim: Annotated[Int, Ge(0), Le(LARGEST_SIDE)] = 0
    num_classes: Classes = 0
    class_names: ClassNames = ()
    class_frequencies: ClassFrequencies = ()
    decoder: str | None = None
    calibration: Calibration | None = None
    format_version: PositiveInt = FORMAT_VERSION

    def __post_init__(self) -> None:
        num = len(self.class_names)
        if num and not num == len(set(self.class_names)) == self.num_classes:
            raise ValueError(
                f"must have {self.num_classes} different class_names, one per class, got "
                f"{shorten(', '.join(self.class_names))}"
            )
        frequencies = self.class_frequencies
        if frequencies and (
            len(frequencies) != self.num_classes or not math.isclose(math.fsum(frequencies), 1)
        ):
            raise ValueError(
                f"must have {self.num_classes} class_frequencies that sum to 1, got "
                f"{len(frequencies)} that sum to {math.fsum(frequencies):g}"
            )

    def classes(self) -> tuple[str, ...]:
        """Return the name of each class, by default its label."""
        return self.class_names or tuple(map(str, range(self.num_classes)))


def max_resolutions(height: int, width: int) -> int:
    """Return the max number of resolutions: 1 + how often an image can be halved."""
    common = math.gcd(height, width)
    return 1 + (common & -common).bit_length() - 1
