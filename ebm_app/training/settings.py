"""Settings of training runs: one dataclass for each training script.

The default instance of a run is the recipe of its data set (``training.recipes``) or a recorded
run. A JSON file, flags and keyword arguments replace its fields. Fields with a help text are
flags.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from tyro.conf import Positional

from ebm_app.config import (
    Frequencies,
    Margin,
    Moment,
    UNetConfig,
)
from ebm_app.data.datasets import ImageData, load_images
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
    Side,
    configuration,
    from_dict,
    setting,
    to_dict,
)
from ebm_app.utils.files import read_json
from ebm_app.utils.registry import choose

#: Value of ``size`` that is replaced by a size for the device and the time
AUTO = "auto"
#: Fields of a run that a resumed run does not inherit
OWN = ("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "dry_run", "device")
#: Fields that set the length of a run
LENGTH = ("max_train_steps", "max_train_minutes")

AnyRun = TypeVar("AnyRun", bound="Run")


@configuration(kw_only=True)
class SourceFlags:
    """Settings of how a training run reads its data set."""

    group: ClassVar[str] = "data"

    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    image_column: str | None = setting("column of images, if a data set has several", None)
    label_column: str | None = setting("column of labels, if a data set has several", None)


@configuration(kw_only=True)
class DataFlags(SourceFlags):
    """Settings of the data set of a training run."""

    group: ClassVar[str] = "data"

    dataset: str = setting(
        "digits, mnist, fashion_mnist, cifar10, folder:PATH, or hf:NAME (Hugging Face)", "digits"
    )
    resolution: Side | None = setting("side to which images of a folder are resized", None)

    def load_data(self) -> ImageData:
        """Load the data set, see ``load_images``."""
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
    """Settings of the output folder and the device of a training run."""

    group: ClassVar[str] = "run"

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

    group: ClassVar[str] = "run"

    max_train_steps: PositiveInt | None = setting("number of optimizer steps", None)
    max_train_minutes: Positive | None = setting("minutes of the run, instead of steps", None)
    train_batch_size: BatchSize = setting("images per batch and process", 128)
    learning_rate: NonNegative = setting("peak learning rate", 2e-3)
    ema_decay: Share = setting("max decay of the saved averaged weights", 0.9999)
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = setting(
        "auto (bf16 if the device supports it), no (float32), bf16 or fp16", "auto"
    )
    compile: Literal["inductor", "aot_eager", "eager"] | None = setting(
        "backend of torch.compile for the training step", None
    )
    resume_from_checkpoint: str | None = setting(
        "checkpoint to resume from: latest, a checkpoint, or the folder of a run", None
    )
    init_from: str | None = setting(
        "model that initialises the weights: folder, bundled name or hub id", None
    )
    report_to: str = setting("jsonl (metrics.jsonl), a tracker of accelerate, or all", "jsonl")
    seed: Seed = setting("seed of weights, batches and training noise", 0)
    config: Path | None = setting("JSON file of settings, or a run.json; flags override it", None)

    #: adam, or muon (orthogonalised momentum for matrices)
    optimizer: str = "adam"
    #: Batches per optimizer step
    gradient_accumulation_steps: PositiveInt = 1
    #: wsd (warm-up, stable, linear decay) or cosine
    lr_scheduler: str = "wsd"
    #: Linear warm-up steps; by default a tenth of the run, at most 100
    lr_warmup_steps: Count | None = None
    #: Final steps over which wsd decays to 0; by default the last quarter of the run
    lr_decay_steps: Count | None = None
    #: Decoupled weight decay
    adam_weight_decay: NonNegative = 0.0
    #: Max norm of the gradients
    max_grad_norm: Positive = 100.0
    #: Steps between checkpoints; by default a twentieth of the run
    checkpointing_steps: PositiveInt | None = None
    #: Max checkpoints to keep
    checkpoints_total_limit: PositiveInt = 3
    #: Steps between validations; by default a tenth of the run, in a run in steps at least 100. A
    #: run in minutes has fewer if start-up, validations and checkpoints would take more than a
    #: fifth of its time
    validation_steps: PositiveInt | None = None
    #: Max validation images; a run in minutes uses as many as fit in that time
    validation_images: AtLeastTwo = 1000
    #: Dequantisation draws per validation image
    validation_repeats: Draws = 4
    #: Images sampled at each validation, in a run in minutes at most; 0 for none
    num_preview_images: Count = 16
    #: Steps between lines of metrics.jsonl
    logging_steps: PositiveInt = 10


@configuration(kw_only=True)
class ModelSettings(UNetConfig):
    """Settings of the model: its space, path and network. ``UNetConfig`` has those of a U-Net."""

    group: ClassVar[str] = "model"

    size: Literal["auto", "tiny", "small", "base", "large"] = setting(
        "about 0.5, 1, 36 or 115 million weights; auto: tiny or small", "auto"
    )
    space: str = setting("ambient, or that of the flow: gaussian, copula or spline", "ambient")
    flow: str | None = setting("folder of a flow; train in its latent space", None)
    path: str = setting("linear_vp (alpha_t = t), or vp (of the paper, for images)", "linear_vp")
    prediction: str = setting("levels, moments, normalised (of the paper) or raw", "levels")
    classes: Literal["none", "all"] = setting("class labels of a class-conditional model", "none")

    #: Second moment of the data
    c: Moment = 1.0
    #: Density within a grey level: uniform or truncated_normal
    dequantisation: str = "truncated_normal"
    #: Margin of the times: the last one is 1 - t_margin; by default, it follows from the
    #: dequantisation
    t_margin: Margin | None = None
    #: Network architecture, a key of ``NETS``
    network: str = "unet"
    #: Time input of the network: arc_length (of the path) or time
    time_input: str = "arc_length"
    #: Fourier features of the input, in cycles
    input_frequencies: Frequencies = ()
    #: Input of the network in a latent space: u (the latent point), x (its image)
    net_input: str = "u"
    #: Quadrature nodes of a likelihood
    num_nodes: Nodes = 32
    #: Recompute activations in the backward pass, to save memory
    gradient_checkpointing: bool = False


@configuration(kw_only=True)
class ObjectiveSettings:
    """Settings of the objective and its training examples."""

    group: ClassVar[str] = "objective"

    objective: str = setting("ctsm_v, ctsm or tsm", "ctsm_v")
    divergence: str = setting("Bregman divergence of ctsm_v: poisson or squared", "poisson")
    stein_factor: NonNegative = setting("weight of the Stein head in the loss; 0: no head", 1.0)
    time_sampler: str = setting("training times: arc_length, uniform or importance", "arc_length")
    label_dropout: Share = setting("share of class labels dropped in training", 0.4)
    augmentation: str = setting("augmentation of training images: none, flip or affine", "none")

    #: lambda(t): inverse_variance, stein_score or uniform
    weighting: str = "inverse_variance"


@configuration(kw_only=True)
class Train(ObjectiveSettings, ModelSettings, Run, DataFlags):
    """Settings of ``train/ebm.py``."""

    group: ClassVar[str] = "run"

    dry_run: bool = setting("print the settings, time and memory of the run, then exit", False)


@configuration(kw_only=True)
class TrainEnergy(Run, SourceFlags):
    """Settings of ``train/energy.py``."""

    group: ClassVar[str] = ""

    model: Positional[str | None] = setting("model: folder, bundled name or hub id", None)
    dataset: str | None = setting("data set; if not given, the model's", None)
    max_train_steps: PositiveInt | None = setting("number of optimizer steps", 4500)
    train_batch_size: BatchSize = setting("images per batch and process", 64)
    output_dir: Path = setting("folder of the run", Path("runs/energy"))

    optimizer: str = "muon"
    max_grad_norm: Positive = 1.0
    validation_images: AtLeastTwo = 200
    validation_repeats: Draws = 1


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file: an object of settings, or the run.json of a run, which
    is started anew, in the precision of this machine."""
    data = read_json(path)
    if not isinstance(data.get("settings"), dict):
        return data
    settings = data["settings"].get("train")
    if not isinstance(settings, dict):
        raise UserError(f"{path} is not the run.json of a training run.")
    dropped = (*OWN, "config", "init_from", "mixed_precision")
    return {name: value for name, value in settings.items() if name not in dropped}


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
            "max_train_steps and max_train_minutes both set the length of a run. Use one of them."
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
    """Return the settings of a resumed run: the recorded ones, with the length, the folder and the
    device of ``run``. None and "auto" stand for the recorded values.

    Args:
        recorded: settings of the run to resume.
        run: the same settings, with those of the user in their place.

    Raises:
        UserError: if another setting differs from the recorded one.
    """
    new = (*OWN, *LENGTH)
    for item in dataclasses.fields(run):
        value, before = getattr(run, item.name), getattr(recorded, item.name)
        if item.name not in new and value not in (None, AUTO, before):
            raise UserError(
                f"A resumed run keeps its settings, but {item.name} is {shorten(value)} and was "
                f"{shorten(before)}. Leave it out, or start a new run in another folder."
            )
    return replace(recorded, **{name: getattr(run, name) for name in new if hasattr(run, name)})
