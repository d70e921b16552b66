"""Configurations are frozen data: dataclasses read from JSON with strict keys, which check their
own values. Those with a help text are flags of the training scripts.

``EBMConfig`` says what a model is and is stored beside its weights; ``LoopConfig`` and
``TrainingConfig`` say how it was trained and are stored with the run.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

from ebm_app.io.fields import (
    BatchSize,
    Count,
    Draws,
    Nodes,
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    Seed,
    Several,
    Share,
    configuration,
    setting,
    shortened,
)

FORMAT_VERSION = 1
#: numbers in an image, beyond which no model of this package is of use
LARGEST_SIDE = 4096
#: resolutions of a U-Net at most
MOST_RESOLUTIONS = 8
Side = Annotated[int, Ge(1), Le(LARGEST_SIDE)]
#: beyond a million cycles the phase of a float32 is lost
Frequency = Annotated[float, Gt(0), Le(1e6)]
Frequencies = Annotated[tuple[Frequency, ...], Len(0, 64)]
Margin = Annotated[float, Ge(1e-12), Lt(0.5)]
ImageShape = Annotated[tuple[Side, ...], Len(3, 3)]
NumLevels = Annotated[int, Ge(2), Le(256)]
GreyLevel = Annotated[int, Ge(0), Le(255)]
PaletteLevels = Annotated[tuple[GreyLevel, ...], Len(0, 256)]
Width = Annotated[int, Ge(1), Le(4096)]
Widths = Annotated[tuple[Width, ...], Len(1, MOST_RESOLUTIONS)]
Layers = Annotated[int, Ge(1), Le(16)]
Resolution = Annotated[int, Ge(0), Lt(MOST_RESOLUTIONS)]
Resolutions = Annotated[tuple[Resolution, ...], Len(0, MOST_RESOLUTIONS)]


@configuration
class PathConfig:
    """A path by its name in ``PATHS``, the second moment c it assumes, and its further
    arguments."""

    name: str = "linear_vp"
    c: Positive = 1.0
    arguments: dict[str, Number] = field(default_factory=dict)


@configuration
class UNetConfig:
    """Shape of a ``UNet``.

    Args:
        block_out_channels: channels at each resolution, the image's own first; each further one
            is half of the one before.
        t_scale: the embedded time is t_scale * t; it sets the highest frequency in t, in radians,
            and with it how many quadrature nodes the ripples of the network ask for.
    """

    block_out_channels: Widths = setting("channels at each resolution", (32, 64))
    layers_per_block: Layers = setting("residual blocks at each resolution", 1)
    attention_levels: Resolutions = setting(
        "resolutions with self-attention, counted from 0", (), rare=True
    )
    num_heads: Width = setting("attention heads", 4, rare=True)
    norm_num_groups: Width = setting("groups of the group normalisations", 8, rare=True)
    dropout: Share = setting("dropout of the residual blocks", 0.0)
    t_scale: Positive = setting("factor of the time inside the embedding", 25.0, rare=True)


@configuration(kw_only=True)
class ModelSettings:
    """What a user chooses of a model, beside its path and its network."""

    space: str = setting(
        "where the path lives: ambient, or the kind of --flow (gaussian, copula, spline)",
        "ambient",
        rare=True,
    )
    net_input: str = setting(
        "in a latent space, what the network reads: u, x (the image of u), ux (both)",
        "u",
        rare=True,
    )
    dequantisation: str = setting(
        "how grey levels become continuous: uniform, truncated_normal", "uniform"
    )
    eps: Margin = setting("margin of the times at t = 1", 5e-7, rare=True)
    prediction: str = setting(
        "what the network predicts: moments (posterior moments), raw (the components of the time "
        "score), normalised (the same in units of their deviation)",
        "moments",
        rare=True,
    )
    time_input: str = setting(
        "the time that the network reads: clock (arc length of the path), time",
        "clock",
        rare=True,
    )
    input_frequencies: Frequencies = setting(
        "Fourier features of the network's input, in cycles", (), rare=True
    )
    num_nodes: Nodes = setting("quadrature nodes of a likelihood", 32, rare=True)


@configuration
class EBMConfig(ModelSettings):
    """What an energy-based model of images is: all that is needed to build it and load its
    weights."""

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    space_arguments: dict[str, Number] = field(default_factory=dict)
    path: PathConfig = PathConfig()
    net: UNetConfig = UNetConfig()
    stein_head: bool = True
    condition_dim: Annotated[int, Ge(0), Le(LARGEST_SIDE)] = 0
    palette: PaletteLevels = ()
    format_version: PositiveInt = FORMAT_VERSION


@configuration
class LoopConfig:
    """What every training has. Steps are optimizer steps; batches are per process."""

    max_train_steps: PositiveInt = setting("optimizer steps", 3000)
    train_batch_size: BatchSize = setting("images in a batch of one process", 128)
    gradient_accumulation_steps: PositiveInt = setting(
        "batches in an optimizer step", 1, rare=True
    )
    optimizer: str = setting(
        "how gradients change the weights: adam, muon (orthogonalised momentum for matrices)",
        "adam",
        rare=True,
    )
    learning_rate: NonNegative = setting("peak learning rate", 2e-3)
    lr_scheduler: str = setting(
        "learning rate after the warm-up: cosine, linear, constant_with_warmup",
        "cosine",
        rare=True,
    )
    lr_warmup_steps: Count = setting("steps over which the learning rate rises", 100, rare=True)
    lr_decay_steps: Count = setting(
        "last steps, over which the rate of constant_with_warmup falls to 0", 0, rare=True
    )
    adam_weight_decay: NonNegative = setting("decoupled weight decay", 0.0, rare=True)
    max_grad_norm: Positive = setting("gradients are clipped to this norm", 100.0, rare=True)
    ema_decay: Share = setting("decay of the averaged weights, which are saved", 0.999, rare=True)
    mixed_precision: Literal["no", "bf16", "fp16"] = setting(
        "numbers of the network's passes", "no"
    )
    checkpointing_steps: PositiveInt = setting("steps between checkpoints", 500)
    checkpoints_total_limit: PositiveInt = setting("checkpoints kept", 3, rare=True)
    validation_steps: PositiveInt = setting("steps between validations", 500)
    validation_images: Several = setting("validation images scored, at most", 1000, rare=True)
    validation_repeats: Draws = setting("dequantisation draws of each", 4, rare=True)
    num_preview_images: Count = setting(
        "images drawn at each validation; 0 for none", 16, rare=True
    )
    logging_steps: PositiveInt = setting("steps between lines of metrics.jsonl", 10, rare=True)
    report_to: Literal["jsonl", "tensorboard"] = setting(
        "where the metrics are written", "jsonl", rare=True
    )
    seed: Seed = setting("seed of weights, batches and noise", 0)


@configuration
class TrainingConfig(LoopConfig):
    """How an energy-based model is trained."""

    objective: str = setting(
        "what the network is trained on: ctsm, ctsm_v, ctsm_m, ctsm_m_deviance, variance, tsm",
        "ctsm_m_deviance",
    )
    weighting: str = setting(
        "lambda(t): time_score (inverse variance of the conditional time score), stein_score, "
        "uniform",
        "time_score",
        rare=True,
    )
    time_sampler: str = setting(
        "how training times are drawn: arc_length, uniform, stratified, importance, early",
        "arc_length",
        rare=True,
    )
    augmentation: str = setting("changes of training images: none, affine", "none")
    stein_factor: NonNegative = setting(
        "weight of the Stein head in the loss; 0 trains none", 1.0, rare=True
    )


@configuration(kw_only=True)
class Settings(TrainingConfig, ModelSettings, UNetConfig):
    """Every setting of a training run by its name, as the flags of ``train/ebm.py`` give them."""

    path: str = setting(
        "how images and noise are mixed: linear_vp (alpha_t = t), vp (the diffusion schedule of "
        "the paper's images)",
        "linear_vp",
    )
    path_arguments: dict[str, Number] = field(default_factory=dict)
    c: Positive | Literal["data"] = setting(
        "second moment of the data that the path assumes; data measures it", 1.0, rare=True
    )


#: Settings of a run that may differ when it is resumed: they change no weight.
FREE_ON_RESUME = frozenset(
    {"checkpointing_steps", "checkpoints_total_limit", "logging_steps", "report_to"}
    | {"validation_steps", "num_preview_images", "num_nodes"}
)


#: settings that older records lack, and what their runs did
EARLIER_DEFAULTS = {"optimizer": "adam"}


def changes_of(
    before: Mapping[str, Any], now: Mapping[str, Any], free: AbstractSet[str]
) -> list[str]:
    """The settings ``now`` that were others ``before``, but for the ``free`` ones, in words.

    A setting that an older record lacks was empty then, or as ``EARLIER_DEFAULTS`` says.
    """
    before = {**EARLIER_DEFAULTS, **before}
    return [
        f"{key} was {shortened(before.get(key))}, now {shortened(value)}"
        for key, value in now.items()
        if key not in free and before.get(key, type(value)()) != value
    ]
