"""From a data set, its preset and a user's own settings to the configurations of a run."""

from collections.abc import Collection, Iterable
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
    upgrade_keys,
)
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.data.levels import image_format
from ebm_app.flow import Flow
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.model import build_path
from ebm_app.nets.composite import NET_INPUTS
from ebm_app.nets.parametrisation import ENERGY, PREDICTIONS, default_prediction
from ebm_app.nets.time_score import TIME_INPUTS
from ebm_app.nets.unet import NETS, check_config
from ebm_app.objectives.regression import OBJECTIVES, WEIGHTINGS
from ebm_app.objectives.time_sampling import TIME_SAMPLERS
from ebm_app.paths import require_one_sided
from ebm_app.spaces import SPACES, Space, build_space
from ebm_app.training.optimizers import OPEN_ENDED, OPTIMIZERS, SCHEDULES
from ebm_app.training.presets import LATENT, preset
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import from_attributes, from_dict, to_dict
from ebm_app.utils.registry import choose

#: for a setting that names a kind of thing, the names
KINDS: dict[str, Collection[str]] = {
    "space": SPACES,
    "dequantisation": DEQUANTISERS,
    "prediction": (*PREDICTIONS, ENERGY),
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
    given: dict[str, Any],
    base: dict[str, Any] | None = None,
    flow: Flow | None = None,
) -> tuple[EBMConfig, TrainingConfig]:
    """The configurations of a run: a recorded run or the preset, overridden by what is given.

    Args:
        given: ``Settings`` by name.
        base: the "settings" of a run record, or None for the data set's preset.
    """
    if base is None:
        size = given.get("size", Settings.size)
        merged = preset(data.name, data.image_shape, data.num_levels, size)
        merged = merged if flow is None else merged | LATENT
    elif "size" in given:
        raise UserError("a recorded run has a network of its own: leave out size")
    else:
        merged = flatten(base)
    settings = from_dict(Settings, merged | given, "settings")
    check_names(settings)
    settings = with_defaults(settings, {*merged, *given}, flow)
    if base is None and "lr_warmup_steps" not in given:
        # a preset's is for its own number of steps: a tenth at most, if above the default
        longest = max(TrainingConfig.lr_warmup_steps, settings.max_train_steps // 10)
        settings = replace(settings, lr_warmup_steps=min(settings.lr_warmup_steps, longest))
    space = _space(settings.space, data, flow)
    config = from_attributes(
        EBMConfig,
        settings,
        dataset=data.name,
        image_shape=data.image_shape,
        num_levels=data.num_levels,
        stein_head=settings.stein_factor > 0,
        num_classes=data.num_classes if settings.classes == "all" else 0,
        early=_early(settings),
        condition_dim=AUGMENTATIONS[settings.augmentation].dim,
        path=PathConfig(settings.path, settings.c),
        net=from_attributes(UNetConfig, settings),
    )
    is_same = base is not None and base["ebm"]["num_levels"] == data.num_levels
    if "eps" not in given and not (is_same and "dequantisation" not in given):
        config = replace(config, eps=_eps(config, space))
    training_config = from_attributes(TrainingConfig, settings)
    check(config, training_config, data)
    return config, training_config


def with_defaults(settings: Settings, given: Iterable[str], flow: Flow | None) -> Settings:
    """The settings in which what was not given suits the others."""
    if "prediction" not in given:
        trains = OBJECTIVES[settings.objective].predictions
        default = default_prediction(settings.stein_factor > 0)
        fits = "objective" not in given or default in trains
        settings = replace(settings, prediction=default if fits else trains[0])
    if "objective" not in given and settings.prediction != "moments":
        settings = replace(settings, objective="ctsm_v")
    if "space" not in given and flow is not None:
        settings = replace(settings, space=flow.config.space)
    return settings


def check_names(settings: Any) -> None:
    """Raise a UserError for a setting that names nothing in the dict of its kind."""
    for name, options in KINDS.items():
        if hasattr(settings, name):
            choose(name, getattr(settings, name), options)


def check(ebm_config: EBMConfig, config: TrainingConfig, data: ImageData) -> None:
    """Raise a UserError for settings that do not go together, before anything is made."""
    check_loop(config, data)
    if ebm_config.net_input != "u" and ebm_config.input_frequencies:
        raise UserError("--input_frequencies are of u alone: leave them out, or --net_input u")
    check_config(ebm_config.net, *ebm_config.image_shape[1:])
    if config.time_sampler == "early" and not ebm_config.early:
        raise UserError(
            "time_sampler early is for a model with an early network: give --early_channels too"
        )
    path = require_one_sided(build_path(ebm_config))
    objective, prediction = config.objective, ebm_config.prediction
    suited = [name for name, kind in OBJECTIVES.items() if prediction in kind.predictions]
    if objective not in suited:
        raise UserError(
            f"prediction {prediction} is trained by objective {' or '.join(suited)}, not by "
            f"{objective}: give such a one, or another prediction"
        )
    if prediction != ENERGY:
        PREDICTIONS[prediction].check(path, ebm_config.stein_head)
    elif ebm_config.num_classes or ebm_config.early:
        raise UserError("an energy network is without labels and without an early network")
    if config.objective == "tsm" and config.stein_factor:
        raise UserError("objective tsm trains no Stein head: give --stein_factor 0")


def check_loop(config: LoopConfig, data: ImageData) -> None:
    """Raise a UserError for settings that no training can use."""
    check_names(config)
    installed = map(str, get_available_trackers())
    choose("installed tracker", config.report_to, ["jsonl", "all", *installed])
    if config.lr_decay_steps and config.lr_scheduler != OPEN_ENDED:
        raise UserError(
            f"--lr_decay_steps is for --lr_scheduler {OPEN_ENDED}: {config.lr_scheduler} falls "
            "from the first step to the last"
        )
    if len(data.validation) < 2:
        raise UserError(
            "at least 2 validation images are needed for a standard error: add images "
            f"({data.name} has {len(data.validation)})"
        )


def flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """The flat settings of a run record."""
    if not isinstance(settings, dict) or not {"ebm", "training"} <= settings.keys():
        raise UserError("the record is not a training run's: give its run.json")
    config = from_dict(EBMConfig, upgrade_keys(settings["ebm"]), "the record's ebm")
    training = from_dict(TrainingConfig, settings["training"], "the record's training")
    ebm, path = to_dict(config), config.path
    model = {field.name: ebm[field.name] for field in fields(ModelSettings)}
    path = {"path": path.name, "c": path.c}
    if config.early:
        path["early_channels"] = config.early.net.block_out_channels
        path["early_max_log_snr"] = config.early.max_log_snr
    path["classes"] = "all" if config.num_classes else "none"
    return {**to_dict(training), **ebm["net"], **path, **model}


def record(config: EBMConfig, training: TrainingConfig) -> dict[str, Any]:
    """The settings that a run record holds, and that ``resolve`` takes as its base."""
    return {"ebm": to_dict(config), "training": to_dict(training)}


def _eps(config: EBMConfig, space: Space) -> float:
    """The margin of a configuration: by its dequantiser where that says how far to go."""
    dequantiser = DEQUANTISERS[config.dequantisation]()
    t = dequantiser.time(config.num_levels, space, build_path(config))
    return config.eps if t == 1.0 else 1 - t


def _early(settings: Settings) -> EarlyConfig | None:
    """The early network, with attention at its lowest resolution."""
    channels = settings.early_channels
    if not channels:
        return None
    net = UNetConfig(channels, attention_levels=(len(channels) - 1,), t_scale=200.0)
    return EarlyConfig(net, max_log_snr=settings.early_max_log_snr)


def _space(name: str, data: ImageData, flow: Flow | None) -> Space:
    """The fitted space of a run."""
    found = EBMConfig.space if flow is None else flow.config.space
    if name != found:
        raise UserError(
            f"--space {name} is that of a flow, here it is {found}: leave --space out, or give "
            "--flow, a folder made by train/flow.py"
        )
    if flow is None:
        return build_space(name, data.image_shape, data.num_levels)
    made, found = image_format(flow.config), image_format(data)
    if made != found:
        raise UserError(
            f"the flow was made for images of {made}, {data.name} has {found}: fit a flow to this "
            "data set"
        )
    return flow.space
