"""Configurations are frozen data: dataclasses read from JSON with strict keys.

``EBMConfig`` says what a model is and is stored beside its weights; ``LoopConfig`` and
``TrainingConfig`` say how it was trained and are stored with the run.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import ConfigDict

from ebm_app.io.fields import (
    STRICT,
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
    setting,
    shortened,
)
from ebm_app.models.unet import UNetConfig

FORMAT_VERSION = 1
#: numbers in an image, beyond which no model of this package is of use
LARGEST_SIDE = 4096
Side = Annotated[int, Ge(1), Le(LARGEST_SIDE)]
#: beyond a million cycles the phase of a float32 is lost
Frequency = Annotated[float, Gt(0), Le(1e6)]
Frequencies = Annotated[tuple[Frequency, ...], Len(0, 64)]
Margin = Annotated[float, Ge(1e-12), Lt(0.5)]
ImageShape = Annotated[tuple[Side, ...], Len(3, 3)]
NumLevels = Annotated[int, Ge(2), Le(256)]
Level = Annotated[int, Ge(0), Le(255)]
PaletteLevels = Annotated[tuple[Level, ...], Len(0, 256)]


@dataclass(frozen=True)
class PathConfig:
    """A path by its name in ``PATHS``, the second moment c it assumes, and its further
    arguments."""

    name: str = "linear_vp"
    c: Positive = 1.0
    arguments: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class EBMConfig:
    """What an energy-based model of images is: all that is needed to build it and load its
    weights."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    space: str = setting("where the path lives; with --flow its kind", "ambient")
    space_arguments: dict[str, Number] = field(default_factory=dict)
    net_input: str = setting("in a latent space, what the network reads", "u", rare=True)
    dequantisation: str = setting("how grey levels become continuous", "uniform")
    path: PathConfig = PathConfig()
    eps: Margin = setting("margin of the times at t = 1", 5e-7, rare=True)
    net: UNetConfig = UNetConfig()
    prediction: str = setting("what the network predicts", "moments", rare=True)
    time_input: str = setting("the time that the network reads", "clock", rare=True)
    stein_head: bool = True
    input_frequencies: Frequencies = setting(
        "Fourier features of the network's input, in cycles", (), rare=True
    )
    condition_dim: Annotated[int, Ge(0), Le(LARGEST_SIDE)] = 0
    num_nodes: Nodes = setting("quadrature nodes of a likelihood", 32, rare=True)
    palette: PaletteLevels = ()
    format_version: PositiveInt = FORMAT_VERSION


@dataclass(frozen=True)
class LoopConfig:
    """What every training has. Steps are optimizer steps; batches are per process."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    max_train_steps: PositiveInt = setting("optimizer steps", 3000)
    train_batch_size: BatchSize = setting("images in a batch of one process", 128)
    gradient_accumulation_steps: PositiveInt = setting(
        "batches in an optimizer step", 1, rare=True
    )
    optimizer: str = setting("how gradients change the weights", "adam")
    learning_rate: NonNegative = setting("peak learning rate", 2e-3)
    lr_scheduler: str = setting("learning rate after the warm-up", "cosine", rare=True)
    lr_warmup_steps: Count = setting("steps over which the learning rate rises", 100, rare=True)
    lr_decay_steps: Count = setting(
        "last steps, over which the rate of constant_with_warmup falls to 0", 0, rare=True
    )
    adam_weight_decay: NonNegative = setting("decoupled weight decay", 0.0, rare=True)
    max_grad_norm: Positive = setting("gradients are clipped to this norm", 100.0, rare=True)
    ema_decay: Share = setting("decay of the averaged weights, which are saved", 0.999, rare=True)
    mixed_precision: str = setting("numbers of the network's passes", "no")
    checkpointing_steps: PositiveInt = setting("steps between checkpoints", 500)
    checkpoints_total_limit: PositiveInt = setting("checkpoints kept", 3, rare=True)
    validation_steps: PositiveInt = setting("steps between validations", 500)
    validation_images: Several = setting("validation images scored, at most", 1000, rare=True)
    validation_repeats: Draws = setting("dequantisation draws of each", 4, rare=True)
    num_preview_images: Count = setting(
        "images drawn at each validation; 0 for none", 16, rare=True
    )
    logging_steps: PositiveInt = setting("steps between lines of metrics.jsonl", 10, rare=True)
    report_to: str = setting("where the metrics are written", "jsonl", rare=True)
    seed: Seed = setting("seed of weights, batches and noise", 0)


@dataclass(frozen=True)
class TrainingConfig(LoopConfig):
    """How an energy-based model is trained."""

    objective: str = setting("what the network is trained on", "ctsm_m_deviance")
    weighting: str = setting("lambda(t)", "time_score", rare=True)
    time_sampler: str = setting("how training times are drawn", "arc_length", rare=True)
    augmentation: str = setting("changes of training images", "none")
    stein_factor: NonNegative = setting(
        "weight of the Stein head in the loss; 0 trains none", 1.0, rare=True
    )


#: Settings of a run that may differ when it is resumed: they change no weight.
FREE_ON_RESUME = frozenset(
    {"checkpointing_steps", "checkpoints_total_limit", "logging_steps", "report_to"}
    | {"validation_steps", "num_preview_images", "num_nodes"}
)


#: what runs did before there was a setting for it
BEFORE_THEY_WERE = {"optimizer": "adam"}


def changes_of(
    before: Mapping[str, Any], now: Mapping[str, Any], free: AbstractSet[str]
) -> list[str]:
    """The settings ``now`` that were others ``before``, but for the ``free`` ones, in words.

    An older record lacks settings that were added since: they were empty then, or as
    ``BEFORE_THEY_WERE`` says.
    """
    before = {**BEFORE_THEY_WERE, **before}
    return [
        f"{key} was {shortened(before.get(key))}, now {shortened(value)}"
        for key, value in now.items()
        if key not in free and before.get(key, type(value)()) != value
    ]
