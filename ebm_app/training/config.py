"""Settings of training runs: one dataclass for each training script.

The default instance of a run is the recipe of its data set (``training.recipes``) or a recorded
run. Flags and keyword arguments replace its fields. This module does not import torch, so that
``--help`` is fast.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tyro.conf import Positional

from ebm_app.config import (
    Frequencies,
    Layers,
    Margin,
    Moment,
    Resolutions,
    Side,
    Width,
    Widths,
)
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import (
    AtLeastTwo,
    BatchSize,
    Count,
    Draws,
    Nodes,
    NonNegative,
    Positive,
    PositiveInt,
    Seed,
    Share,
    configuration,
    from_dict,
    setting,
    to_dict,
)
from ebm_app.utils.registry import choose

if TYPE_CHECKING:
    from ebm_app.data.images import ImageData

#: Value of ``size`` that is replaced by a size for the machine and the time
AUTO = "auto"
#: Fields of a run that a resumed run does not inherit
OWN = ("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "config", "dry_run")
OWN += ("device", "expect_processes")
#: Fields that may differ from the recorded run on a resume, since they do not affect the weights
FREE = frozenset(
    "checkpointing_steps checkpoints_total_limit logging_steps report_to validation_steps "
    "num_preview_images num_nodes gradient_checkpointing data_root download flow "
    "init_from".split()
)
#: Fields that split a batch. They may change on a resume: a step only depends on the total.
SPLIT = frozenset({"train_batch_size", "gradient_accumulation_steps"})

AnyRun = TypeVar("AnyRun", bound="Run")


@configuration(kw_only=True)
class SourceFlags:
    """Flags of how a training run reads its data set."""

    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    image_column: str | None = setting("column of images, if a data set has several", None)
    label_column: str | None = setting("column of labels, if a data set has several", None)


@configuration(kw_only=True)
class DataFlags(SourceFlags):
    """Flags of the data set of a training run."""

    dataset: str = setting(
        "digits, mnist, fashion_mnist, cifar10, folder:PATH (image files), or hf:NAME (a Hugging "
        "Face data set, by its folder or its name on the hub)",
        "digits",
    )
    resolution: Side | None = setting("side to which images of a folder are resized", None)

    def load_data(self) -> "ImageData":
        """Load the data set, see ``load_images``."""
        from ebm_app.data.images import load_images  # slow to import

        return load_images(
            self.dataset,
            self.data_root,
            self.download,
            self.resolution,
            image_column=self.image_column,
            label_column=self.label_column,
        )


@configuration(kw_only=True)
class FolderFlags:
    """Flags of the output folder and the device of a training run."""

    output_dir: Path = setting("folder of the run", Path("runs/model"))
    overwrite_output_dir: bool = setting(
        "delete a previous run in the output folder, unless it is resumed", False
    )
    device: str = setting("auto, cpu or cuda", "auto")


@configuration(kw_only=True)
class Run(FolderFlags):
    """Settings of the training loop. Steps are optimizer steps; batch sizes are per process.

    The length of a run is set in steps or minutes. Warm-up, decay, validations and checkpoints
    that are None are shares of the run, see ``training.schedule``.
    """

    max_train_steps: PositiveInt | None = setting("number of optimizer steps", None)
    max_train_minutes: Positive | None = setting(
        "minutes of the run, instead of --max_train_steps: start-up, training and validation",
        None,
    )
    train_batch_size: BatchSize = setting("images per batch and process", 128)
    gradient_accumulation_steps: PositiveInt = setting("batches per optimizer step", 1)
    optimizer: str = setting("adam, or muon (orthogonalised momentum for matrices)", "adam")
    learning_rate: NonNegative = setting("peak learning rate", 2e-3)
    lr_scheduler: str = setting("wsd (warm-up, stable, linear decay) or cosine", "wsd")
    lr_warmup_steps: Count | None = setting(
        "linear warm-up steps of the learning rate; if not given, a tenth of the run, at most 100",
        None,
    )
    lr_decay_steps: Count | None = setting(
        "final steps over which wsd decays to 0; if not given, the last quarter of the run", None
    )
    adam_weight_decay: NonNegative = setting("decoupled weight decay", 0.0)
    max_grad_norm: Positive = setting("max norm of the gradients", 100.0)
    ema_decay: Share = setting(
        "max decay of the saved averaged weights, which is (1 + n) / (10 + n) after n steps",
        0.9999,
    )
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = setting(
        "auto (bf16 if the device supports it), no (float32), bf16 or fp16", "auto"
    )
    compile: Literal["inductor", "aot_eager", "eager"] | None = setting(
        "backend of torch.compile for the training step", None
    )
    checkpointing_steps: PositiveInt | None = setting(
        "steps between checkpoints; if not given, a twentieth of the run", None
    )
    checkpoints_total_limit: PositiveInt = setting("max checkpoints to keep", 3)
    validation_steps: PositiveInt | None = setting(
        "steps between validations; if not given, a tenth of the run, less often if validations "
        "take more than a tenth of the time",
        None,
    )
    validation_images: AtLeastTwo = setting(
        "max validation images; reduced if a validation exceeds 1/40 of --max_train_minutes", 1000
    )
    validation_repeats: Draws = setting("dequantisation draws per validation image", 4)
    num_preview_images: Count = setting("images sampled at each validation; 0 for none", 16)
    logging_steps: PositiveInt = setting("steps between lines of metrics.jsonl", 10)
    report_to: str = setting(
        "jsonl (only metrics.jsonl), a tracker of accelerate, or all", "jsonl"
    )
    resume_from_checkpoint: str | None = setting(
        "checkpoint to resume from: latest, a checkpoint, or the folder of a run", None
    )
    init_from: str | None = setting(
        "model that initialises the weights: folder, bundled name or hub id", None
    )
    expect_processes: PositiveInt | None = setting(
        "expected number of processes; fails if it differs", None
    )
    seed: Seed = setting("seed of weights, batches and training noise", 0)


@configuration(kw_only=True)
class Train(DataFlags, Run):
    """Settings of ``train/ebm.py``."""

    space: str = setting(
        "space of the model: ambient, that of --flow (gaussian, copula or spline), or a "
        "registered one",
        "ambient",
    )
    flow: str | None = setting(
        "folder of a flow from train/flow.py; train in its latent space", None
    )
    objective: str = setting("ctsm_v, ctsm or tsm", "ctsm_v")
    divergence: str = setting(
        "Bregman divergence of ctsm_v: poisson (needs prediction levels or moments), or squared "
        "(of the paper)",
        "poisson",
    )
    path: str = setting("linear_vp (alpha_t = t), or vp (of the paper, for images)", "linear_vp")
    c: Moment = setting("second moment of the data", 1.0)
    prediction: str = setting(
        "output of the network: levels, moments, normalised (of the paper) or raw", "levels"
    )
    stein_factor: NonNegative = setting(
        "weight of the Stein head in the loss; 0 for no Stein head", 1.0
    )
    weighting: str = setting(
        "lambda(t): inverse_variance, stein_score or uniform", "inverse_variance"
    )
    time_sampler: str = setting("training times: arc_length, uniform or importance", "arc_length")
    dequantisation: str = setting(
        "density within a grey level: uniform or truncated_normal", "truncated_normal"
    )
    t_margin: Margin | None = setting(
        "margin of the times: the last one is 1 - t_margin; if not given, it follows from the "
        "dequantisation",
        None,
    )
    classes: Literal["none", "all"] = setting("class labels of a class-conditional model", "none")
    label_dropout: Share = setting("share of class labels dropped in training", 0.4)
    augmentation: str = setting("augmentation of training images: none, flip or affine", "none")
    size: Literal["auto", "tiny", "small", "base", "large"] = setting(
        "size of the network: about 0.5, 1, 36 or 115 million weights; auto is tiny for a run in "
        "minutes on a slow machine, and otherwise small",
        "auto",
    )
    network: str = setting("network architecture: unet", "unet")
    block_out_channels: Widths = setting("channels at each resolution", (32, 64))
    layers_per_block: Layers = setting("residual blocks at each resolution", 1)
    attention_levels: Resolutions = setting("resolutions with self-attention, from 0", ())
    num_heads: Width = setting("attention heads", 4)
    norm_num_groups: Width = setting("groups of the group normalisation", 8)
    dropout: Share = setting("dropout of the residual blocks", 0.0)
    t_scale: Positive = setting("factor of the embedded time", 25.0)
    time_input: str = setting(
        "time input of the network: arc_length (of the path) or time", "arc_length"
    )
    input_frequencies: Frequencies = setting("Fourier features of the input, in cycles", ())
    net_input: str = setting(
        "input of the network in a latent space: u (the latent point), x (its image)", "u"
    )
    num_nodes: Nodes = setting("quadrature nodes of a likelihood", 32)
    gradient_checkpointing: bool = setting(
        "recompute activations in the backward pass, to save memory", False
    )
    config: Path | None = setting("run.json to take settings from; flags override them", None)
    dry_run: bool = setting("print the settings, time and memory of the run, then exit", False)


@configuration(kw_only=True)
class TrainEnergy(Run, SourceFlags):
    """Settings of ``train/energy.py``."""

    model: Positional[str | None] = setting("model: folder, bundled name or hub id", None)
    dataset: str | None = setting("data set; if not given, the model's", None)
    max_train_steps: PositiveInt | None = setting("number of optimizer steps", 4500)
    train_batch_size: BatchSize = setting("images per batch and process", 64)
    optimizer: str = setting("adam, or muon (orthogonalised momentum for matrices)", "muon")
    max_grad_norm: Positive = setting("max norm of the gradients", 1.0)
    validation_images: AtLeastTwo = setting(
        "max validation images; reduced if a validation exceeds 1/40 of --max_train_minutes", 200
    )
    validation_repeats: Draws = setting("dequantisation draws per validation image", 1)
    output_dir: Path = setting("folder of the run", Path("runs/energy"))


def with_settings(base: AnyRun, settings: Mapping[str, Any]) -> AnyRun:
    """Return a run whose fields are replaced by a user's settings. A length in steps replaces one
    in minutes, and vice versa.

    >>> with_settings(Train(max_train_steps=8000), {"max_train_minutes": 10.0}).max_train_steps

    Raises:
        UserError: for an unknown setting, an invalid value, or two lengths.
    """
    names = [item.name for item in dataclasses.fields(base)]
    for name in settings:
        choose("setting", name, names)
    run = from_dict(type(base), {**to_dict(base), **settings}, "settings")
    return one_length(base, run)


def one_length(base: AnyRun, run: AnyRun) -> AnyRun:
    """Return a run with the length, in steps or minutes, that differs from ``base``."""
    new_steps = run.max_train_steps not in (None, base.max_train_steps)
    new_minutes = run.max_train_minutes not in (None, base.max_train_minutes)
    if new_steps and new_minutes:
        raise UserError(
            "--max_train_steps and --max_train_minutes both set the length of the run. Use one of "
            "them."
        )
    if new_steps:
        return replace(run, max_train_minutes=None)
    return replace(run, max_train_steps=None) if new_minutes else run


def as_default(recorded: AnyRun) -> AnyRun:
    """Return a recorded run as the default of another run, with the fields ``OWN`` reset to their
    defaults."""
    own = [item for item in dataclasses.fields(recorded) if item.name in OWN]
    return replace(recorded, **{item.name: item.default for item in own})


def resumed(recorded: AnyRun, run: AnyRun) -> AnyRun:
    """Return the settings of a resumed run: those of ``run``, where None and "auto" stand for the
    recorded values."""
    names = [item.name for item in dataclasses.fields(run) if item.name not in OWN]
    unset = [name for name in names if getattr(run, name) in (None, "auto")]
    return replace(run, **{name: getattr(recorded, name) for name in unset})


def changes_of(
    before: Mapping[str, Any], now: Mapping[str, Any], free: frozenset[str] = frozenset()
) -> list[str]:
    """Return a message for each setting that changed, except the ``free`` settings."""
    return [
        f"{key} was {shorten(before.get(key))}, now {shorten(value)}"
        for key, value in now.items()
        if key not in free and not _is_same(before.get(key), value)
    ]


def _is_same(before: Any, now: Any) -> bool:
    """Whether two values are equal, with a tolerance for computed floats such as t_margin."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-9)
    return before == now
