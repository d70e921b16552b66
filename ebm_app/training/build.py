"""What a run needs: its processes and folder, its model and batches. ``train`` is the training
script as a function."""

import inspect
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import DynamoBackend, LoggerType
from diffusers import ModelMixin
from torch import Tensor

from ebm_app.config import EBMConfig, PathConfig, UNetConfig
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.datasets import ImageData
from ebm_app.data.levels import image_format
from ebm_app.ebm import EBM
from ebm_app.flow import Flow, FlowConfig
from ebm_app.likelihood.dequantisation import DEQUANTISERS, TRAINABLE, Cells
from ebm_app.nets.build import build_path
from ebm_app.nets.model import TIME_INPUTS
from ebm_app.nets.prediction import PREDICTIONS
from ebm_app.nets.unet import NET_INPUTS, NETS, check_config
from ebm_app.objectives.regression import (
    DIVERGENCES,
    OBJECTIVES,
    TSM,
    WEIGHTINGS,
    check_objective,
    make_objective,
)
from ebm_app.objectives.time_sampling import TIME_SAMPLERS
from ebm_app.paths import PATHS, require_one_sided
from ebm_app.spaces import SPACES, Space, build_space
from ebm_app.training.batches import Batches
from ebm_app.training.checkpoint import find_checkpoint, recorded_settings
from ebm_app.training.loop import Task, fit
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.recipes import fitting_size, recipe
from ebm_app.training.schedule import SCHEDULES, WSD
from ebm_app.training.settings import Run, Train, resumed, with_settings
from ebm_app.utils import RUN_FILE
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PathArgument, check_argument, from_attributes, to_dict
from ebm_app.utils.output import Output, lock
from ebm_app.utils.processes import (
    describe_devices,
    make_accelerator,
    on_main,
    resolve_device,
    shut_down,
    stop_with_launcher,
)
from ebm_app.utils.registry import choose

#: Margin of uniformly dequantised images with 256 levels; the noise of the last time then has a
#: standard deviation of 1 / 78 of a bin
UNIFORM_T_MARGIN = 5e-9
#: Lock file: one training run per output folder
LOCK = ".lock"
#: Backends of torch.compile that do not compile
UNCOMPILED = (DynamoBackend.NO, DynamoBackend.EAGER)
#: Fewer steps than these are too few for a useful model
FEW_STEPS = 100
#: Settings of the script that ``train`` does not have
OF_SCRIPT = {"config", "data_root", "download", "dry_run", "resolution", "image_column"}
OF_SCRIPT |= {"label_column", "settings"}
#: Settings that may differ between a run and the model it is initialised from
FREE = frozenset(
    {
        "dataset",
        "class_names",
        "class_frequencies",
        "num_nodes",
        "t_margin",
        "dequantisation",
        "calibration",
    }
)
#: Valid values of settings that name a class or function
NAMES = {
    "space": SPACES,
    "objective": OBJECTIVES,
    "divergence": DIVERGENCES,
    "path": PATHS,
    "prediction": PREDICTIONS,
    "weighting": WEIGHTINGS,
    "time_sampler": TIME_SAMPLERS,
    "dequantisation": TRAINABLE,
    "augmentation": AUGMENTATIONS,
    "network": NETS,
    "time_input": TIME_INPUTS,
    "net_input": NET_INPUTS,
}


@contextmanager
def open_run(config: Run, data: ImageData) -> Iterator[tuple[Accelerator, Output]]:
    """Set up the processes, and lock the output folder while the context is open."""
    accelerator = make_accelerator(
        config.mixed_precision,
        config.device,
        project_dir=str(config.output_dir),
        log_with=None if config.report_to == "jsonl" else config.report_to,
        dynamo_backend=config.compile,
    )
    stop_with_launcher()
    output = Output(config.output_dir / RUN_FILE)
    output.data["images"] = data.summary()
    with on_main(accelerator, lambda: lock(output.folder / LOCK)) or nullcontext():
        yield accelerator, output
        shut_down(accelerator)


def build(
    accelerator: Accelerator,
    config: Train,
    ebm_config: EBMConfig,
    data: ImageData,
    flow: Flow | None = None,
) -> Task:
    """Build the model, whose initial weights depend on the seed only, its objective and its
    batches.

    Args:
        ebm_config: from ``make_config``.
        flow: flow whose latent space is used; None for the ambient space.
    """
    objective = make_objective(
        config.objective,
        config.divergence,
        config.weighting,
        config.stein_factor,
        ebm_config.t_margin,
    )
    if isinstance(objective, TSM):
        refuse_compiler(accelerator)
    torch.manual_seed(config.seed)
    ebm = EBM(ebm_config)
    if flow is not None:
        ebm.space.load_state_dict(flow.space.state_dict())
    if config.init_from and not config.resume_from_checkpoint:
        init_from(ebm, config.init_from)
    ebm.to(accelerator.device)
    for module in ebm.modules() if config.gradient_checkpointing else ():
        if isinstance(module, ModelMixin):
            module.enable_gradient_checkpointing()
    batches = Batches(
        ebm,
        data.train,
        TIME_SAMPLERS[config.time_sampler](ebm.model.path, ebm_config.t_margin),
        config.train_batch_size * config.gradient_accumulation_steps * accelerator.num_processes,
        config.seed,
        AUGMENTATIONS[config.augmentation](),
        data.labels[0] if ebm_config.num_classes else None,
        config.label_dropout,
    )
    return Task(ebm, objective, batches, data.validation, second_estimator="time_integral")


def announce(accelerator: Accelerator, data: ImageData) -> None:
    """Print the devices and the data of a run."""
    if accelerator.is_main_process:
        print(f"Training on {describe_devices(accelerator)}.", file=sys.stderr)
        print(data.describe(), file=sys.stderr)


def make_config(config: Train, data: ImageData, flow: Flow | None = None) -> EBMConfig:
    """Return the configuration of the model of a run.

    Raises:
        UserError: for settings that do not fit each other or the data.
    """
    check(config, data)
    space = make_space(config.space, data, flow)
    num_classes = data.num_classes if config.classes == "all" else 0
    ebm_config = from_attributes(
        EBMConfig,
        config,
        dataset=data.name,
        image_shape=data.image_shape,
        num_levels=data.num_levels,
        stein_head=config.stein_factor > 0,
        num_classes=num_classes,
        class_names=data.class_names[:num_classes],
        class_frequencies=data.class_frequencies if num_classes else (),
        condition_dim=AUGMENTATIONS[config.augmentation].dim,
        path=PathConfig(config.path, config.c),
        net=from_attributes(UNetConfig, config),
        t_margin=UNIFORM_T_MARGIN * (256 / data.num_levels) ** 2
        if config.t_margin is None
        else config.t_margin,
    )
    require_one_sided(build_path(ebm_config))
    PREDICTIONS[config.prediction].check(build_path(ebm_config), ebm_config.stein_head)
    dequantiser = DEQUANTISERS[config.dequantisation]()
    end = dequantiser.time(Cells(data.num_levels, space), build_path(ebm_config))
    if config.t_margin is None and end < 1:  # the dequantiser defines the margin
        ebm_config = replace(ebm_config, t_margin=1 - end)
    return ebm_config


def check(config: Train, data: ImageData) -> None:
    """Raise a UserError for settings that do not fit each other, before anything is built."""
    check_run(config, data)
    for name, names in NAMES.items():
        choose(name, getattr(config, name), names)
    if config.net_input != "u" and config.input_frequencies:
        raise UserError("input_frequencies requires net_input u.")
    check_config(config, *data.image_shape[1:])
    if config.prediction == "levels" and config.dequantisation == "uniform":
        raise UserError(
            "dequantisation uniform evaluates the density between grey levels, where prediction "
            "levels has none. Use dequantisation truncated_normal, or another prediction."
        )
    if config.objective == "tsm" and config.stein_factor:
        raise UserError("objective tsm cannot train a Stein head. Set stein_factor to 0.")
    check_objective(config.objective, config.divergence, config.prediction)


def check_run(config: Run, data: ImageData) -> None:
    """Raise a UserError for invalid settings of the training loop, or fewer than 2 validation
    images."""
    choose("optimizer", config.optimizer, OPTIMIZERS)
    choose("lr_scheduler", config.lr_scheduler, SCHEDULES)
    trackers = ["jsonl", "all", *(str(tracker) for tracker in LoggerType if tracker != "all")]
    tracker = choose("tracker", config.report_to, trackers)
    if tracker not in ("jsonl", "all", *map(str, get_available_trackers())):
        raise UserError(f"{tracker} is not installed. Run pip install {tracker}.")
    if config.max_train_steps is None and config.max_train_minutes is None:
        raise UserError(
            "Neither max_train_steps nor max_train_minutes is set. Set the length of the run."
        )
    if config.lr_decay_steps is not None and config.lr_scheduler != WSD:
        raise UserError(f"lr_decay_steps requires lr_scheduler {WSD}.")
    if config.lr_decay_steps is not None and config.max_train_steps is None:
        raise UserError(
            "lr_decay_steps requires max_train_steps. The decay of a run in minutes takes the "
            "last quarter of its time."
        )
    if (num := len(data.validation)) < 2:
        raise UserError(
            f"Expected at least 2 validation images for a standard error, got {num} in "
            f"{data.name}. Add validation images."
        )


def refuse_compiler(accelerator: Accelerator) -> None:
    """Raise a UserError if the training step is compiled."""
    if accelerator.state.dynamo_plugin.backend not in UNCOMPILED:
        raise UserError(
            "Energy networks and the objective tsm need second derivatives, which torch.compile "
            "does not support. Leave out compile."
        )


def make_space(name: str, data: ImageData, flow: Flow | None) -> Space:
    """Return the fitted space of a run."""
    if flow is None:
        space = build_space(name, data.image_shape, data.num_levels)
        if space.needs_fit():
            raise UserError(
                f"space {name} is fitted to images. Set flow to a {name} flow from train/flow.py."
            )
        return space
    if name != flow.config.space:
        raise UserError(
            f"space {name} does not match the space {flow.config.space} of the flow. Leave out "
            f"space, or set flow to a {name} flow from train/flow.py."
        )
    expected, actual = image_format(flow.config), image_format(data)
    if expected != actual:
        raise UserError(
            f"The flow expects images of {expected}, but {data.name} has {actual}. Fit a flow to "
            "this data set."
        )
    return flow.space


def latent_flow(name_or_path: str | os.PathLike | None) -> Flow | None:
    """Return the flow of a model in a latent space, or None for a model of pixels or no model.

    >>> latent_flow("digits") is None, latent_flow("mnist-latent").config.space
    (True, 'copula')
    """
    if name_or_path is None:
        return None
    ebm = EBM.from_pretrained(name_or_path)
    if ebm.space.scale is not None:
        return None
    flow = Flow(from_attributes(FlowConfig, ebm.config))
    flow.space = ebm.space
    return flow


def init_from(ebm: EBM, name_or_path: str | os.PathLike) -> None:
    """Initialise a model with the weights of another model, by folder, bundled name or hub id."""
    source = EBM.from_pretrained(name_or_path)
    before, now = to_dict(source.config), to_dict(ebm.config)
    changed = [name for name in now if name not in FREE and now[name] != before[name]]
    if changed:
        name = changed[0]
        raise UserError(
            f"The model {name_or_path} does not match this run: {name} was "
            f"{shorten(before[name])}, now {shorten(now[name])}. Use its settings, which are in "
            "its run.json."
        )
    space = ebm.space.state_dict()
    if not all(torch.equal(space[key].cpu(), v) for key, v in source.space.state_dict().items()):
        raise UserError(
            f"The model {name_or_path} uses the latent space of another flow. Use that flow."
        )
    ebm.load_state_dict(source.state_dict())


def fit_model(
    config: Train,
    ebm_config: EBMConfig,
    data: ImageData,
    flow: Flow | None,
    start: float,
    checkpoint: Path | None = None,
) -> dict[str, Any] | None:
    """Train a model with a record of the run; return the figures on the main process.

    Args:
        ebm_config: from ``make_config``.
        flow: as for ``build``.
        start: as for ``fit``.
        checkpoint: checkpoint to resume from.
    """
    with open_run(config, data) as (accelerator, output):
        # accelerate's configuration file may set the precision
        config = replace(config, mixed_precision=accelerator.mixed_precision)
        task = build(accelerator, config, ebm_config, data, flow)
        announce(accelerator, data)
        figures = fit(accelerator, config, task, output, start, checkpoint)
        if not accelerator.is_main_process:
            return None
        output.save(figures)
        return figures


def warn_of_few_steps(config: Run, steps: int, advice: str) -> None:
    """Print what to change if a run in minutes had time for few steps only."""
    if config.max_train_steps is None and steps < FEW_STEPS:
        print(
            f"Trained for {steps} step{'s' if steps > 1 else ''}: use {advice}.", file=sys.stderr
        )


def train(
    images: Tensor | np.ndarray,
    output_dir: str | os.PathLike,
    validation: Tensor | np.ndarray | None = None,
    num_levels: int = 256,
    dataset: str = "images",
    flow: Flow | None = None,
    labels: Tensor | None = None,
    **settings: Any,
) -> EBM:
    """Train an energy-based model of images; return the model with the lowest validation loss.

    Settings, training loop and output files are the same as for ``train/ebm.py``. Use
    ``resume_from_checkpoint="latest"`` to resume an interrupted run. The default objective is
    CTSM-v of the paper, with the Poisson divergence.

    Args:
        images: (N, C, H, W), uint8 levels 0..num_levels - 1, or floats level / (num_levels - 1)
            in [0, 1]. ``ebm_app.read_images`` reads them from image files.
        output_dir: folder of the run.
        validation: held-out images in the same format. Default: a random tenth of ``images``, at
            least 2.
        num_levels: number L of grey levels.
        dataset: name of the data set in the run record. It also selects the recipe: names other
            than "digits" use the recipe for their image size.
        flow: train in the latent space of this flow. Default: that of the ``init_from`` model, if
            any, otherwise the ambient space. A resumed run has the flow of its start.
        labels: class labels (N,), for a class-conditional model.
        settings: fields of ``ebm_app.training.settings.Train`` except ``OF_SCRIPT``, which
            replace those of the recipe. A resumed run has its recorded settings, except for
            ``device`` and a new length.

    Raises:
        UserError: for invalid images, a setting that is unknown or has no effect, an invalid
            value, or a folder that already holds a run.

    Example:
        >>> import tempfile, torch
        >>> images = torch.randint(17, (20, 1, 8, 8), dtype=torch.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ebm = train(images, folder, num_levels=17, max_train_steps=2, device="cpu",
        ...                 train_batch_size=4, block_out_channels=(8,), num_preview_images=0)
        >>> ebm.config.image_shape
        (1, 8, 8)
    """
    start, checkpoint = time.perf_counter(), None
    known = {*inspect.signature(train).parameters, *(item.name for item in fields(Train))}
    for name in settings:
        choose("argument of train()", name, known - OF_SCRIPT)
    folder = Path(check_argument(PathArgument, "output_dir", output_dir))
    check_argument(str, "dataset", dataset), check_argument(Flow | None, "flow", flow)
    if labels is not None and settings.get("classes") == "none":
        raise UserError('classes="none" does not use labels. Leave out classes or labels.')
    data = ImageData.from_tensors(images, validation, num_levels, dataset, labels)
    settings = {**settings, "dataset": dataset, "output_dir": folder}
    if labels is not None:
        settings["classes"] = "all"
    if name := settings.get("resume_from_checkpoint"):
        if flow is not None:
            raise UserError("A resumed run has the flow of its start. Leave out flow.")
        check_argument(PathArgument, "resume_from_checkpoint", name)
        checkpoint = find_checkpoint(folder, name)
        recorded = recorded_settings(Train, checkpoint)
        config = resumed(recorded, with_settings(recorded, settings))
        flow = latent_flow(checkpoint)
    else:
        flow = latent_flow(settings.get("init_from")) if flow is None else flow
        space = settings.get("space", EBMConfig.space) if flow is None else flow.config.space
        size = fitting_size(with_settings(Train(), settings))
        base = recipe(dataset, data.image_shape, data.num_levels, size, space)
        config = with_settings(base, settings)
    ebm_config = make_config(config, data, flow)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        figures = fit_model(config, ebm_config, data, flow, start, checkpoint)
    if figures is not None:
        warn_of_few_steps(config, figures["steps"], 'size="tiny" or more minutes')
    return EBM.from_pretrained(folder, resolve_device(config.device))
