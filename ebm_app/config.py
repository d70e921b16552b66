"""Configurations: frozen dataclasses that validate keys and values.

Fields with a help text are flags of the training scripts. ``EBMConfig`` describes a model and is
stored with its weights. ``LoopConfig`` and ``TrainingConfig`` describe its training and are stored
in the run record.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

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
    NumLevels,
    Positive,
    PositiveInt,
    Seed,
    Share,
    advanced,
    configuration,
    setting,
)

FORMAT_VERSION = 1
LARGEST_SIDE = 4096
MAX_RESOLUTIONS = 8
Side = Annotated[Int, Ge(1), Le(LARGEST_SIDE)]
#: Cycles; above 10^6, float32 loses the phase
Frequency = Annotated[Float, Gt(0), Le(1e6)]
Frequencies = Annotated[tuple[Frequency, ...], Len(0, 64)]
Margin = Annotated[Float, Ge(1e-12), Lt(0.5)]
#: Second moment of the data; outside this range, a path has only noise or only data
Moment = Annotated[Float, Ge(1e-6), Le(1e6)]
ImageShape = Annotated[tuple[Side, ...], Len(3, 3)]
Width = Annotated[Int, Ge(1), Le(4096)]
Widths = Annotated[tuple[Width, ...], Len(1, MAX_RESOLUTIONS)]
Layers = Annotated[Int, Ge(1), Le(32)]
Classes = Annotated[Int, Ge(0), Le(100_000)]
ClassNames = Annotated[tuple[str, ...], Len(0, 100_000)]
LogSNR = Annotated[Float, Ge(-20), Le(20)]
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
        t_scale: factor of the embedded time. It sets the highest frequency in t, in radians, and
            thereby the number of quadrature nodes that a likelihood needs.
    """

    block_out_channels: Widths = setting("channels at each resolution", (32, 64))
    layers_per_block: Layers = advanced("residual blocks at each resolution", 1)
    attention_levels: Resolutions = advanced("resolutions with self-attention, from 0", ())
    num_heads: Width = advanced("attention heads", 4)
    norm_num_groups: Width = advanced("groups of the group normalisation", 8)
    dropout: Share = setting("dropout of the residual blocks", 0.0)
    t_scale: Positive = advanced("factor of the embedded time", 25.0)


@configuration
class EarlyConfig:
    """Separate network for early times, see ``ebm_app.nets.composite``.

    Args:
        net: architecture. The input has the pixels of a patch as channels.
        patch: side of a patch in pixels.
        max_log_snr: log SNR log(alpha_t^2 / v_t) at which the early times end.
    """

    net: UNetConfig
    patch: Annotated[Int, Ge(1), Le(16)] = 2
    max_log_snr: LogSNR = 0.0


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


@configuration(kw_only=True)
class ModelSettings:
    """Settings of a model, without its path and network."""

    space: str = setting(
        "space of the model: ambient, or that of --flow (gaussian, copula or spline)", "ambient"
    )
    net_input: str = advanced(
        "input of the network in a latent space: u (the latent point), x (its image)", "u"
    )
    dequantisation: str = setting(
        "density within a grey level: uniform or truncated_normal",
        "uniform",
    )
    eps: Margin = advanced("margin: the last time is 1 - eps", 5e-7)
    network: str = advanced("network architecture: unet", "unet")
    prediction: str = advanced(
        "output of the network: levels, moments, normalised (of the paper) or raw",
        "moments",
    )
    time_input: str = advanced(
        "time input of the network: arc_length (of the path) or time", "arc_length"
    )
    input_frequencies: Frequencies = advanced("Fourier features of the input, in cycles", ())
    num_nodes: Nodes = advanced("quadrature nodes of a likelihood", 32)


@configuration
class EBMConfig(ModelSettings):
    """Configuration of an energy-based model of images, from which it is built.

    Args:
        dataset, image_shape, num_levels: name, (C, H, W) and number of grey levels of the images.
        path, net: path and network.
        stein_head: whether the network predicts the Stein score.
        condition_dim: number of augmentation parameters that the network receives.
        num_classes: number of classes; 0 for an unconditional model.
        class_names: names of the classes, if the data set has any.
        early: network for early times, if any.
        decoder: prediction of the decoder of an energy network.
        calibration: calibration offset of an energy network.
    """

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    path: PathConfig = PathConfig()
    net: UNetConfig = UNetConfig()
    stein_head: bool = True
    condition_dim: Annotated[Int, Ge(0), Le(LARGEST_SIDE)] = 0
    num_classes: Classes = 0
    class_names: ClassNames = ()
    early: EarlyConfig | None = None
    decoder: str | None = None
    calibration: Calibration | None = None
    format_version: PositiveInt = FORMAT_VERSION

    def classes(self) -> tuple[str, ...]:
        """Return the name of each class, by default its label."""
        return self.class_names or tuple(map(str, range(self.num_classes)))


@configuration
class LoopConfig:
    """Settings of all training runs. Steps are optimizer steps; batch sizes are per process.

    The length of a run is set in steps or minutes. Settings with default None are derived from the
    number of steps, see ``ebm_app.training.plan.complete``.
    """

    max_train_steps: PositiveInt | None = setting("number of optimizer steps", None)
    max_train_minutes: Positive | None = setting(
        "minutes of training and validation, instead of --max_train_steps; the number of steps "
        "is computed from the speed of the first steps",
        None,
    )
    train_batch_size: BatchSize = setting("images per batch and process", 128)
    gradient_accumulation_steps: PositiveInt = advanced("batches per optimizer step", 1)
    optimizer: str = advanced("adam, or muon (orthogonalised momentum for matrices)", "adam")
    learning_rate: NonNegative = setting("peak learning rate", 2e-3)
    lr_scheduler: str = advanced("cosine or constant_with_warmup", "cosine")
    lr_warmup_steps: Count | None = advanced(
        "linear warm-up steps of the learning rate; if not given, a tenth of the run, at most 100",
        None,
    )
    lr_decay_steps: Count = advanced("final steps over which constant_with_warmup decays to 0", 0)
    adam_weight_decay: NonNegative = advanced("decoupled weight decay", 0.0)
    max_grad_norm: Positive = advanced("max norm of the gradients", 100.0)
    ema_decay: Share | None = advanced(
        "decay of the saved averaged weights; if not given, 1 - 10 / steps, at most 0.9999", None
    )
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = setting(
        "auto (bf16 if the device supports it), no (float32), bf16 or fp16", "auto"
    )
    compile: Literal["inductor", "aot_eager", "eager"] | None = advanced(
        "backend of torch.compile for the training step", None
    )
    checkpointing_steps: PositiveInt | None = setting(
        "steps between checkpoints; if not given, a twentieth of the run", None
    )
    checkpoints_total_limit: PositiveInt = advanced("max checkpoints to keep", 3)
    validation_steps: PositiveInt | None = setting(
        "steps between validations; if not given, a tenth of the run", None
    )
    validation_images: AtLeastTwo = advanced(
        "max validation images; reduced if a validation exceeds 1/20 of --max_train_minutes", 1000
    )
    validation_repeats: Draws = advanced("dequantisation draws per validation image", 4)
    num_preview_images: Count = advanced("images sampled at each validation; 0 for none", 16)
    logging_steps: PositiveInt = advanced("steps between lines of metrics.jsonl", 10)
    report_to: str = advanced(
        "jsonl (only metrics.jsonl), a tracker of accelerate, or all", "jsonl"
    )
    seed: Seed = setting("seed of weights, batches and noise", 0)


@configuration
class TrainingConfig(LoopConfig):
    """Settings of training an energy-based model."""

    objective: str = setting(
        "ctsm_m (this project's variant of ctsm_v with posterior moments); or ctsm, ctsm_v or tsm "
        "(of the paper)",
        "ctsm_m",
    )
    weighting: str = advanced(
        "lambda(t): inverse_variance, stein_score or uniform", "inverse_variance"
    )
    time_sampler: str = advanced(
        "training times: arc_length, uniform, importance or early (trains the early network only)",
        "arc_length",
    )
    label_dropout: Share = advanced("share of class labels dropped in training", 0.4)
    augmentation: str = setting("augmentation of training images: none, flip or affine", "none")
    stein_factor: NonNegative = advanced(
        "weight of the Stein head in the loss; 0 for no Stein head", 1.0
    )
    gradient_checkpointing: bool = advanced(
        "recompute activations in the backward pass, to save memory", False
    )


@configuration(kw_only=True)
class Settings(TrainingConfig, ModelSettings, UNetConfig):
    """Settings of a training run, which are flags of ``train/ebm.py``."""

    size: Literal["small", "base", "large"] = setting(
        "size of the network: about 1, 36 or 115 million weights", "small"
    )
    path: str = setting("linear_vp (alpha_t = t), or vp (of the paper, for images)", "linear_vp")
    classes: Literal["none", "all"] = setting("class labels of a class-conditional model", "none")
    early_channels: Annotated[tuple[Width, ...], Len(0, MAX_RESOLUTIONS)] = advanced(
        "channels at each resolution of a separate network for early times", ()
    )
    c: Moment = advanced("second moment of the data", 1.0)
