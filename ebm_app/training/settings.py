"""Configurations of a run from its data set, flags and a recorded run."""

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

from accelerate.tracking import get_available_trackers

from ebm_app.config import (
    EarlyConfig,
    EBMConfig,
    LoopConfig,
    ModelSettings,
    PathConfig,
    Settings,
    TrainingConfig,
    UNetConfig,
)
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.data.levels import image_format
from ebm_app.flow import Flow
from ebm_app.likelihood.dequantisation import DEQUANTISERS, TRAINABLE, Cells
from ebm_app.nets.build import build_path
from ebm_app.nets.composite import NET_INPUTS
from ebm_app.nets.parametrisation import PREDICTIONS
from ebm_app.nets.path_model import TIME_INPUTS
from ebm_app.nets.unet import NETS, check_config
from ebm_app.objectives.regression import OBJECTIVES, WEIGHTINGS
from ebm_app.objectives.time_sampling import TIME_SAMPLERS
from ebm_app.paths import require_one_sided
from ebm_app.spaces import SPACES, Space, build_space
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.plan import CONSTANT, SCHEDULES, flags_on_resume, override
from ebm_app.training.recipes import LATENT, make_recipe
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import from_attributes, from_dict, to_dict
from ebm_app.utils.registry import choose

#: Valid values of settings that name a class or function
NAMES: dict[str, Collection[str]] = {
    "space": SPACES,
    "dequantisation": TRAINABLE,
    "prediction": PREDICTIONS,
    "time_input": TIME_INPUTS,
    "net_input": NET_INPUTS,
    "network": NETS,
    "objective": OBJECTIVES,
    "weighting": WEIGHTINGS,
    "time_sampler": TIME_SAMPLERS,
    "augmentation": AUGMENTATIONS,
    "optimizer": OPTIMIZERS,
    "lr_scheduler": SCHEDULES,
}


def resolve(
    data: ImageData,
    flags: dict[str, Any],
    file: dict[str, Any] | None = None,
    flow: Flow | None = None,
) -> tuple[EBMConfig, TrainingConfig]:
    """Return the configurations of a run.

    Settings come from four sources; later ones override earlier ones: the defaults of
    ``Settings``, the recipe of the data set, the file, and the flags.

    Args:
        data: the images.
        flags: fields of ``Settings`` by name.
        file: "settings" of a run record, as from ``record_settings``.
        flow: flow whose latent space is used; None for the ambient space.

    Raises:
        UserError: for an unknown setting, an invalid value or incompatible settings.
    """
    size = flags.get("size", Settings.size)
    recipe = make_recipe(data.name, data.image_shape, data.num_levels, size)
    if file is not None and "size" in flags:  # replaces the network of the file
        names = recipe.keys() & {field.name for field in fields(UNetConfig)}
        flags = {name: recipe[name] for name in names} | flags
    latent = {} if flow is None else {**LATENT, "space": flow.config.space}
    recorded = {} if file is None else flatten(file)
    chosen = override({**recipe, **latent, **recorded}, flags)
    settings = from_dict(Settings, chosen, "settings")
    check_names(settings)
    settings = adapt_defaults(settings, {*recorded, *flags})
    space, early = _space(settings.space, data, flow), None
    if channels := settings.early_channels:  # with attention at the lowest resolution
        levels = (len(channels) - 1,)
        early = EarlyConfig(UNetConfig(channels, attention_levels=levels, t_scale=200.0))
    num_classes = data.num_classes if settings.classes == "all" else 0
    config = from_attributes(
        EBMConfig,
        settings,
        dataset=data.name,
        image_shape=data.image_shape,
        num_levels=data.num_levels,
        stein_head=settings.stein_factor > 0,
        num_classes=num_classes,
        class_names=data.class_names[:num_classes],
        early=early,
        condition_dim=AUGMENTATIONS[settings.augmentation].dim,
        path=PathConfig(settings.path, settings.c),
        net=from_attributes(UNetConfig, settings),
    )
    has_same_bins = file is not None and file["ebm"]["num_levels"] == data.num_levels
    if "eps" not in flags and not (has_same_bins and "dequantisation" not in flags):
        dequantiser = DEQUANTISERS[config.dequantisation]()
        end = dequantiser.time(Cells(config.num_levels, space), build_path(config))
        if end < 1:  # the dequantiser defines the margin
            config = replace(config, eps=1 - end)
    training_config = from_attributes(TrainingConfig, settings)
    check(config, training_config, data)
    return config, training_config


def adapt_defaults(settings: Settings, explicit: Collection[str]) -> Settings:
    """Return the settings with a prediction and an objective that are compatible with each other
    and with the ``explicit`` settings."""
    supported = OBJECTIVES[settings.objective].predictions
    if "prediction" not in explicit:
        default = settings.prediction if settings.stein_factor > 0 else "normalised"
        is_supported = "objective" not in explicit or default in supported
        settings = replace(settings, prediction=default if is_supported else supported[0])
    if "objective" not in explicit and settings.prediction not in supported:
        settings = replace(settings, objective="ctsm_v")
    return settings


def resolve_loop(
    recipe: dict[str, Any], flags: dict[str, Any], data: ImageData, resumed: dict[str, Any]
) -> LoopConfig:
    """Return the training settings of a flow or a distillation: those of the recipe or the run to
    resume, overridden by flags."""
    recorded = resumed.get("training", {})
    if recorded:
        flags = flags_on_resume(recorded, flags)
    config = from_dict(LoopConfig, override(recipe | recorded, flags), "settings")
    check_loop(config, data)
    return config


def check_names(settings: Any) -> None:
    """Raise a UserError for a setting whose value is not in ``NAMES``."""
    for field in fields(settings):
        if field.name in NAMES:
            choose(field.name, getattr(settings, field.name), NAMES[field.name])


def check(ebm_config: EBMConfig, config: TrainingConfig, data: ImageData) -> None:
    """Raise a UserError for incompatible settings, before anything is built."""
    check_loop(config, data)
    if ebm_config.net_input != "u" and ebm_config.input_frequencies:
        raise UserError("--input_frequencies requires --net_input u.")
    check_config(ebm_config.net, *ebm_config.image_shape[1:])
    if config.time_sampler == "early" and not ebm_config.early:
        raise UserError("--time_sampler early requires an early network. Add --early_channels.")
    objective, prediction = config.objective, ebm_config.prediction
    supported = [name for name, kind in OBJECTIVES.items() if prediction in kind.predictions]
    if objective not in supported:
        raise UserError(
            f"Objective {objective} does not support prediction {prediction}. Use --objective "
            f"{' or '.join(supported)}, or another --prediction."
        )
    if prediction == "levels" and ebm_config.dequantisation == "uniform":
        raise UserError(
            "--dequantisation uniform evaluates the density between grey levels, where prediction "
            "levels has none. Use --dequantisation truncated_normal, or another --prediction."
        )
    path = require_one_sided(build_path(ebm_config))
    PREDICTIONS[prediction].check(path, ebm_config.stein_head)
    if objective == "tsm" and config.stein_factor:
        raise UserError("--objective tsm cannot train a Stein head. Add --stein_factor 0.")


def check_loop(config: LoopConfig, data: ImageData) -> None:
    """Raise a UserError for settings or data that no run can use."""
    check_names(config)
    trackers = ["jsonl", "all", *map(str, get_available_trackers())]
    choose("installed tracker", config.report_to, trackers)
    if config.max_train_steps is None and config.max_train_minutes is None:
        raise UserError("The run has no length. Set --max_train_steps or --max_train_minutes.")
    if config.lr_decay_steps and config.lr_scheduler != CONSTANT:
        raise UserError(f"--lr_decay_steps requires --lr_scheduler {CONSTANT}.")
    if (num := len(data.validation)) < 2:
        raise UserError(
            f"Expected at least 2 validation images for a standard error, got {num} in "
            f"{data.name}. Add validation images."
        )


def flatten(file: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run record as fields of ``Settings`` by name."""
    if not all(isinstance(file.get(key), dict) for key in ("ebm", "training")):
        raise UserError("--config is not the run.json of a training run. Pass that file.")
    config = from_dict(EBMConfig, file["ebm"], "ebm of the record")
    training = from_dict(TrainingConfig, file["training"], "training of the record")
    ebm = to_dict(config)
    model = {field.name: ebm[field.name] for field in fields(ModelSettings)}
    model |= {"path": config.path.name, "c": config.path.c}
    model["classes"] = "all" if config.num_classes else "none"
    if config.early:
        model["early_channels"] = config.early.net.block_out_channels
    return {**to_dict(training), **ebm["net"], **model}


def record_settings(config: EBMConfig, training: TrainingConfig) -> dict[str, Any]:
    """Return the settings of a run record, as accepted by ``resolve``."""
    return {"ebm": to_dict(config), "training": to_dict(training)}


def _space(name: str, data: ImageData, flow: Flow | None) -> Space:
    """Return the fitted space of a run."""
    own = EBMConfig.space if flow is None else flow.config.space
    if name != own:
        raise UserError(
            f"--space {name} does not match the space {own} of this run. Pass a {name} flow from "
            "train/flow.py as --flow."
        )
    if flow is None:
        return build_space(name, data.image_shape, data.num_levels)
    expected, actual = image_format(flow.config), image_format(data)
    if expected != actual:
        raise UserError(
            f"The flow expects images of {expected}, but {data.name} has {actual}. Fit a flow to "
            "this data set."
        )
    return flow.space
