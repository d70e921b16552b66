"""Training of energy-based models of images."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
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
from ebm_app.training.checkpoint import recorded_run
from ebm_app.training.config import Train, resumed, with_settings
from ebm_app.training.recipes import fitting_size, recipe
from ebm_app.training.run import (
    check_run,
    fit_and_report,
    init_from,
    open_run,
    refuse_compiler,
    start_or_resume,
)
from ebm_app.training.trainer import Trainer
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PathArgument, check_argument, from_attributes
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import choose

#: Margin of uniformly dequantised images with 256 levels; the noise of the last time then has a
#: standard deviation of 1 / 78 of a bin
UNIFORM_T_MARGIN = 5e-9
#: Settings of the command line that ``train`` does not use
COMMAND_LINE = ("config", "data_root", "download", "dry_run", "resolution")
COMMAND_LINE += ("image_column", "label_column")
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


def train_ebm(
    config: Train, data: ImageData, flow: Flow | None = None, began: float | None = None
) -> dict[str, Any] | None:
    """Train a model; return the metrics on the main process, and None on others.

    Args:
        config: settings of the run.
        data: the images.
        flow: flow whose latent space is used; None for the ambient space.
        began: start of a run in minutes, a value of ``time.perf_counter()``. Default: now.
    """
    began = time.perf_counter() if began is None else began
    ebm_config = make_config(config, data, flow)
    with open_run(config) as (accelerator, output):
        # accelerate's configuration file may set the precision
        config = replace(config, mixed_precision=accelerator.mixed_precision)

        make_trainer = partial(build_trainer, accelerator, config, ebm_config, data, flow)
        trainer = start_or_resume(accelerator, config, make_trainer)
        figures = fit_and_report(trainer, data, output, began)
        if not accelerator.is_main_process:
            return None
        output.save(figures)
        return figures


def build_trainer(
    accelerator: Accelerator,
    config: Train,
    ebm_config: EBMConfig,
    data: ImageData,
    flow: Flow | None = None,
) -> Trainer:
    """Build the trainer of a run, whose initial weights depend on the seed only."""
    from diffusers import ModelMixin  # slow to import

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
    return Trainer(
        accelerator,
        ebm,
        objective,
        batches,
        data.validation,
        config,
        second_estimator="time_integral",
    )


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
    check_config(from_attributes(UNetConfig, config), *data.image_shape[1:])
    if config.prediction == "levels" and config.dequantisation == "uniform":
        raise UserError(
            "dequantisation uniform evaluates the density between grey levels, where prediction "
            "levels has none. Use dequantisation truncated_normal, or another prediction."
        )
    if config.objective == "tsm" and config.stein_factor:
        raise UserError("objective tsm cannot train a Stein head. Set stein_factor to 0.")
    check_objective(config.objective, config.divergence, config.prediction)


def make_space(name: str, data: ImageData, flow: Flow | None) -> Space:
    """Return the fitted space of a run."""
    if flow is None:
        space = build_space(name, data.image_shape, data.num_levels)
        if space.needs_fit():
            raise UserError(
                f"--space {name} is fitted to images. Pass a {name} flow from train/flow.py as "
                "--flow."
            )
        return space
    if name != flow.config.space:
        raise UserError(
            f"--space {name} does not match the space {flow.config.space} of the flow. Leave out "
            f"--space, or pass a {name} flow from train/flow.py as --flow."
        )
    expected, actual = image_format(flow.config), image_format(data)
    if expected != actual:
        raise UserError(
            f"The flow expects images of {expected}, but {data.name} has {actual}. Fit a flow to "
            "this data set."
        )
    return flow.space


def flow_of_run(config: Train) -> Flow | None:
    """Return the flow of a new run in a latent space, that of ``flow`` or of its initial model, or
    None."""
    return Flow.from_pretrained(config.flow) if config.flow else latent_flow(config.init_from)


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
        settings: fields of ``ebm_app.training.config.Train`` except ``COMMAND_LINE``, which
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
    folder = Path(check_argument(PathArgument, "output_dir", output_dir))
    check_argument(str, "dataset", dataset), check_argument(Flow | None, "flow", flow)
    for name in COMMAND_LINE:
        if name in settings:
            raise UserError(f"{name} is a setting of train/ebm.py, not of train(). Leave it out.")
    if labels is not None and settings.get("classes") == "none":
        raise UserError('classes="none" does not use labels. Leave out classes or labels.')
    data = ImageData.from_tensors(images, validation, num_levels, dataset, labels)
    settings = {**settings, "dataset": dataset, "output_dir": folder}
    if labels is not None:
        settings["classes"] = "all"
    if name := settings.get("resume_from_checkpoint"):
        check_argument(PathArgument, "resume_from_checkpoint", name)
        recorded, checkpoint = recorded_run(Train, folder, name)
        if flow is not None:
            raise UserError("A resumed run has the flow of its start. Leave out flow.")
        config = resumed(recorded, with_settings(recorded, settings))
        flow = latent_flow(checkpoint)
    else:
        flow = latent_flow(settings.get("init_from")) if flow is None else flow
        space = settings.get("space", EBMConfig.space) if flow is None else flow.config.space
        size = fitting_size(with_settings(Train(), settings))
        base = recipe(dataset, data.image_shape, data.num_levels, size, space)
        config = with_settings(base, settings)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        train_ebm(config, data, flow)
    return EBM.from_pretrained(folder, resolve_device(config.device))
