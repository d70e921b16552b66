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

from ebm_app.utils.errors import shorten
from ebm_app.utils.fields import (
    AtLeastTwo,
    BatchSize,
    Count,
    Draws,
    Float,
    Int,
    Nodes,
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    Seed,
    Share,
    advanced,
    configuration,
    renamed,
    setting,
)

FORMAT_VERSION = 1
LARGEST_SIDE = 4096
MOST_RESOLUTIONS = 8
Side = Annotated[Int, Ge(1), Le(LARGEST_SIDE)]
#: beyond a million cycles the phase of a float32 is lost
Frequency = Annotated[Float, Gt(0), Le(1e6)]
Frequencies = Annotated[tuple[Frequency, ...], Len(0, 64)]
Margin = Annotated[Float, Ge(1e-12), Lt(0.5)]
#: of data; beyond, a path holds nothing but noise or nothing but data
Moment = Annotated[Float, Ge(1e-6), Le(1e6)]
ImageShape = Annotated[tuple[Side, ...], Len(3, 3)]
#: Old values of settings, which records of earlier versions hold
RENAMED: dict[str, dict[str, str]] = {
    "time_input": {"clock": "arc_length"},
    "weighting": {"time_score": "inverse_variance"},
}
TimeInput, WeightingName = (renamed(**names) for names in RENAMED.values())
NumLevels = Annotated[Int, Ge(2), Le(256)]
#: older folders hold these empty
NoPalette = Annotated[tuple[int, ...], Len(0, 0)]
NoArguments = Annotated[dict[str, Number], Len(0, 0)]
Width = Annotated[Int, Ge(1), Le(4096)]
Widths = Annotated[tuple[Width, ...], Len(1, MOST_RESOLUTIONS)]
Layers = Annotated[Int, Ge(1), Le(16)]
Classes = Annotated[Int, Ge(0), Le(100_000)]
LogSNR = Annotated[Float, Ge(-20), Le(20)]
Resolutions = Annotated[
    tuple[Annotated[Int, Ge(0), Lt(MOST_RESOLUTIONS)], ...], Len(0, MOST_RESOLUTIONS)
]


@configuration
class PathConfig:
    """A path by its name in ``PATHS``, and the second moment c it assumes."""

    name: str = "linear_vp"
    c: Moment = 1.0
    arguments: NoArguments = field(default_factory=dict)


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
    layers_per_block: Layers = advanced("residual blocks at each resolution", 1)
    attention_levels: Resolutions = advanced("with self-attention, counted from 0", ())
    num_heads: Width = advanced("attention heads", 4)
    norm_num_groups: Width = advanced("groups of the group normalisations", 8)
    dropout: Share = setting("dropout of the residual blocks", 0.0)
    t_scale: Positive = advanced("factor of the time inside the embedding", 25.0)


@configuration
class EarlyConfig:
    """An early network, see ``ebm_app.nets.composite``.

    Args:
        net: its shape, on images whose squares of pixels are channels.
        patch: side of these squares.
        max_log_snr: log(alpha_t^2 / v_t) from which on the other network is asked.
    """

    net: UNetConfig
    patch: Annotated[Int, Ge(1), Le(16)] = 2
    max_log_snr: LogSNR = 0.0


@configuration
class Residual:
    """By how much one pass of an energy is off at the last time, against the bound of the model's
    own score: its mean over validation images, the standard error of that mean, and its standard
    deviation over images, in nats."""

    mean: Number = 0.0
    stderr: NonNegative = 0.0
    spread: NonNegative = 0.0


@configuration(kw_only=True)
class ModelSettings:
    """What a user chooses of a model, beside its path and its network."""

    space: str = advanced(
        "ambient, display, or that of --flow: gaussian, copula, spline", "ambient"
    )
    net_input: str = advanced("what the network reads of a latent u: u, x (its image)", "u")
    dequantisation: str = setting("of grey levels: uniform, truncated_normal, decoder", "uniform")
    eps: Margin = advanced("margin of the times at t = 1", 5e-7)
    network: str = advanced("its kind: unet", "unet")
    prediction: str = advanced(
        "what the network predicts: moments, raw, normalised, energy", "moments"
    )
    time_input: TimeInput = advanced(
        "time that the network reads: arc_length (of the path), time", "arc_length"
    )
    input_frequencies: Frequencies = advanced("Fourier features of the input, in cycles", ())
    num_nodes: Nodes = advanced("quadrature nodes of a likelihood", 32)


@configuration
class EBMConfig(ModelSettings):
    """What an energy-based model of images is: all that is needed to build it and load its
    weights."""

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    space_arguments: NoArguments = field(default_factory=dict)
    path: PathConfig = PathConfig()
    net: UNetConfig = UNetConfig()
    stein_head: bool = True
    condition_dim: Annotated[Int, Ge(0), Le(LARGEST_SIDE)] = 0
    palette: NoPalette = ()
    num_classes: Classes = 0
    early: EarlyConfig | None = None
    residual: Residual | None = None
    format_version: PositiveInt = FORMAT_VERSION


@configuration
class LoopConfig:
    """What every training has. Steps are optimizer steps; batches are per process."""

    max_train_steps: PositiveInt = setting("optimizer steps", 3000)
    train_batch_size: BatchSize = setting("images in a batch of one process", 128)
    gradient_accumulation_steps: PositiveInt = advanced("batches in an optimizer step", 1)
    optimizer: str = advanced("adam, or muon (orthogonalised momentum for matrices)", "adam")
    learning_rate: NonNegative = setting("peak learning rate", 2e-3)
    lr_scheduler: str = advanced("cosine or constant_with_warmup", "cosine")
    lr_warmup_steps: Count = advanced("steps over which the learning rate rises", 100)
    lr_decay_steps: Count = advanced("last steps, in which constant_with_warmup falls to 0", 0)
    adam_weight_decay: NonNegative = advanced("decoupled weight decay", 0.0)
    max_grad_norm: Positive = advanced("gradients are clipped to this norm", 100.0)
    ema_decay: Share = advanced("decay of the averaged weights, which are saved", 0.999)
    mixed_precision: Literal["no", "bf16", "fp16"] = setting("of the network's passes", "no")
    compile: Literal["inductor", "aot_eager", "eager"] | None = advanced(
        "compile the training step by this backend of torch.compile", None
    )
    ddp_args: tuple[str, ...] = advanced(
        "options of DistributedDataParallel, such as comm_hook=bf16 find_unused_parameters=true",
        (),
    )
    checkpointing_steps: PositiveInt = setting("steps between checkpoints", 500)
    checkpoints_total_limit: PositiveInt = advanced("checkpoints kept", 3)
    validation_steps: PositiveInt = setting("steps between validations", 500)
    validation_images: AtLeastTwo = advanced("validation images scored, at most", 1000)
    validation_repeats: Draws = advanced("dequantisation draws of each", 4)
    num_preview_images: Count = advanced("images drawn at each validation; 0 for none", 16)
    logging_steps: PositiveInt = advanced("steps between lines of metrics.jsonl", 10)
    report_to: str = advanced(
        "jsonl, or beside it a tracker of accelerate, or all of them", "jsonl"
    )
    seed: Seed = setting("seed of weights, batches and noise", 0)


@configuration
class TrainingConfig(LoopConfig):
    """How an energy-based model is trained."""

    objective: str = setting(
        "ctsm_m (this project's variant of ctsm_v, by posterior moments), the paper's ctsm, "
        "ctsm_v and tsm, or dual (for an energy network)",
        "ctsm_m",
    )
    weighting: WeightingName = advanced(
        "lambda(t): inverse_variance, stein_score, uniform", "inverse_variance"
    )
    time_sampler: str = advanced(
        "training times: arc_length, uniform, importance; early, which trains the early network "
        "alone",
        "arc_length",
    )
    label_dropout: Share = advanced("share of the class labels that training hides", 0.4)
    augmentation: str = setting("changes of training images: none, affine", "none")
    stein_factor: NonNegative = advanced(
        "weight of the Stein head in the loss; 0 trains none", 1.0
    )
    gradient_checkpointing: bool = advanced(
        "compute the blocks of the network again in the backward pass: less memory", False
    )


@configuration(kw_only=True)
class Settings(TrainingConfig, ModelSettings, UNetConfig):
    """Every setting of a training run by its name, as the flags of ``train/ebm.py`` give them."""

    size: Literal["small", "base", "large"] = setting(
        "network of a preset, of about 1.5, 36 or 115 million weights", "small"
    )
    path: str = setting("linear_vp (alpha_t = t), or vp (the paper's, of images)", "linear_vp")
    classes: Literal["none", "all"] = setting("class labels that the network is told", "none")
    early_channels: Annotated[tuple[Width, ...], Len(0, MOST_RESOLUTIONS)] = advanced(
        "channels of a network of its own for the times at which an image takes its shape", ()
    )
    early_max_log_snr: LogSNR = advanced("log signal-to-noise ratio at which these times end", 0.0)
    c: Moment = advanced("second moment of the data", 1.0)


#: Settings of a run that may differ when it is resumed: they change no weight.
FREE_ON_RESUME = frozenset(
    {"checkpointing_steps", "checkpoints_total_limit", "logging_steps", "report_to"}
    | {"validation_steps", "num_preview_images", "num_nodes", "gradient_checkpointing"}
)


def changes_of(
    before: Mapping[str, Any], now: Mapping[str, Any], free: AbstractSet[str]
) -> list[str]:
    """The settings ``now`` that were others ``before``, but for the ``free`` ones, in words; one
    that an older record lacks was empty then, but for the optimizer, which was Adam."""
    before = {"optimizer": "adam", **before}
    for key, names in RENAMED.items():
        if before.get(key) in names:
            before[key] = names[before[key]]
    return [
        f"{key} was {shorten(before.get(key))}, now {shorten(value)}"
        for key, value in now.items()
        if key not in free and before.get(key, type(value)()) != value
    ]
