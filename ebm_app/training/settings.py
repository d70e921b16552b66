"""From a data set, its preset and a user's own settings to the configurations of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.data.images import ImageData
from ebm_app.data.levels import dequantise
from ebm_app.data.palette import form_of
from ebm_app.image_models.ebm import build_path
from ebm_app.image_models.flow import Flow
from ebm_app.io.cli import parsed
from ebm_app.io.errors import UserError
from ebm_app.io.fields import Positive, shortened
from ebm_app.io.records import from_dict, to_dict
from ebm_app.io.registry import choose
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.models.config import EBMConfig, LoopConfig, PathConfig, TrainingConfig
from ebm_app.models.inputs import NET_INPUTS
from ebm_app.models.parametrisation import PREDICTIONS, default_prediction
from ebm_app.models.time_score import TIME_INPUTS
from ebm_app.models.unet import UNetConfig, check_config
from ebm_app.objectives.regression import OBJECTIVES
from ebm_app.objectives.time_sampling import TIME_SAMPLERS
from ebm_app.objectives.weighting import WEIGHTINGS, second_moment
from ebm_app.paths import check_eps
from ebm_app.spaces import SPACES, Space, build_space
from ebm_app.training.learning_rate import OPEN_ENDED, SCHEDULES
from ebm_app.training.metrics import REPORTS, check_report_to
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.presets import LATENT, preset

NET_KEYS = {f.name for f in fields(UNetConfig)}
TRAINING_KEYS = {f.name for f in fields(TrainingConfig)}
EBM_KEYS = {"space", "space_arguments", "dequantisation", "eps", "num_nodes", "prediction"}
EBM_KEYS |= {"time_input", "input_frequencies", "net_input"}
PATH_KEYS = {"path", "c", "path_arguments"}
#: for a setting that names a kind of thing, the dict of the names
LOOP_KINDS: dict[str, Mapping[str, Any]] = {
    "optimizer": OPTIMIZERS,
    "lr_scheduler": SCHEDULES,
    "mixed_precision": {"no": "float32", "bf16": "bfloat16", "fp16": "float16, scaled loss"},
    "report_to": REPORTS,
}
TRAINING_KINDS: dict[str, Mapping[str, Any]] = {
    "objective": OBJECTIVES,
    "weighting": WEIGHTINGS,
    "time_sampler": TIME_SAMPLERS,
    "augmentation": AUGMENTATIONS,
}
MODEL_KINDS: dict[str, Mapping[str, Any]] = {
    "space": SPACES,
    "dequantisation": DEQUANTISERS,
    "prediction": PREDICTIONS,
    "time_input": TIME_INPUTS,
    "net_input": NET_INPUTS,
}


@dataclass(frozen=True)
class RunSettings:
    """What the record of a training run holds under "settings"."""

    ebm: EBMConfig
    training: TrainingConfig


def resolve(
    data: ImageData,
    given: dict[str, Any],
    base: dict[str, Any] | None = None,
    flow: Flow | None = None,
) -> tuple[EBMConfig, TrainingConfig]:
    """The configurations of a run: a recorded run or the preset, overridden by what is given.

    Args:
        data: the images, which fix shape and levels.
        given: flat settings by name; ``c`` may be "data" for the data's own second moment.
        base: the "settings" of a run record, or None for the data set's preset.
        flow: whose latent space the path lives in; None for the ambient space.

    Raises:
        UserError: for unknown names or wrong types, or a flow of other images.
    """
    if base is None:
        model, training = preset(data.name, data.image_shape, data.num_levels)
        merged = {**model, **training, **({} if flow is None else LATENT)}
    else:
        merged = flatten(base)
    if "path" in given:  # the arguments of another path are not this one's
        merged.pop("path_arguments", None)
    merged.update(given)
    unknown = set(merged) - NET_KEYS - TRAINING_KEYS - EBM_KEYS - PATH_KEYS
    if unknown:
        raise UserError(f"unknown settings: {', '.join(sorted(unknown))}")
    has_head = merged.get("stein_factor", TrainingConfig.stein_factor) > 0
    merged.setdefault("prediction", default_prediction(has_head))
    is_moments = merged["prediction"] == "moments"
    merged.setdefault("objective", "ctsm_m_deviance" if is_moments else "ctsm_v")
    training_config = from_dict(TrainingConfig, _only(merged, TRAINING_KEYS), "training settings")
    if base is None and "lr_warmup_steps" not in given:
        training_config = shorter_warmup(training_config)
    net = from_dict(UNetConfig, _only(merged, NET_KEYS), "network settings")
    space = _space(merged, data, flow)
    path = PathConfig(
        merged.get("path", PathConfig.name),
        _moment(merged.get("c", 1.0), data, space),
        merged.get("path_arguments", {}),
    )
    model = {
        "dataset": data.name,
        "image_shape": data.image_shape,
        "num_levels": data.num_levels,
        "palette": data.palette,
        "stein_head": has_head,
        "condition_dim": _condition_dim(training_config.augmentation),
        **_only(merged, EBM_KEYS),
        **({} if flow is None else flow.latent_space()),
    }
    config = replace(from_dict(EBMConfig, model, "model settings"), path=path, net=net)
    is_given = "eps" in given or _is_of(base, given, data)
    config = replace(config, eps=_eps(config, space, is_given))
    check(config, training_config, data)
    return config, training_config


def check(ebm_config: EBMConfig, config: TrainingConfig, data: ImageData) -> None:
    """Raise a UserError for names or values of no use in training, before anything is made."""
    check_loop(config, data)
    for name, kinds in TRAINING_KINDS.items():
        choose(name, getattr(config, name), kinds)
    for name, kinds in MODEL_KINDS.items():
        choose(name, getattr(ebm_config, name), kinds)
    if ebm_config.net_input != "u" and ebm_config.input_frequencies:
        raise UserError("--input_frequencies are of u alone: leave them out, or --net_input u")
    check_config(ebm_config.net, *ebm_config.image_shape[1:])
    path = build_path(ebm_config)
    path.check_reference()
    PREDICTIONS[ebm_config.prediction].check(path, ebm_config.stein_head)
    check_eps(ebm_config.eps)
    objective = OBJECTIVES[config.objective]
    if objective.needs_moments and ebm_config.prediction != "moments":
        raise UserError(
            f"objective {config.objective} trains moments: give --prediction moments or ctsm_v"
        )
    if objective.last_layer_only and config.adam_weight_decay:
        raise UserError(
            f"objective {config.objective} leaves all but the last layer as it is: give "
            "--adam_weight_decay 0"
        )
    if config.objective == "tsm" and config.stein_factor:
        raise UserError("objective tsm trains no Stein head: give --stein_factor 0")


def check_loop(config: LoopConfig, data: ImageData) -> None:
    """Raise a UserError for names or values of no use in any training."""
    for name, kinds in LOOP_KINDS.items():
        choose(name, getattr(config, name), kinds)
    check_report_to(config.report_to)
    if config.lr_decay_steps and config.lr_scheduler != OPEN_ENDED:
        raise UserError(
            f"--lr_decay_steps is for --lr_scheduler {OPEN_ENDED}: {config.lr_scheduler} falls "
            "from the first step to the last"
        )
    if min(config.validation_images, len(data.validation)) < 2:
        raise UserError(
            "at least 2 validation images are needed for a standard error: raise "
            f"--validation_images or add images ({data.name} has {len(data.validation)})"
        )


def shorter_warmup(config: TrainingConfig) -> TrainingConfig:
    """The warm-up of a preset is for its own number of steps; here, a tenth of them at most where
    it is longer than the default."""
    longest = max(TrainingConfig.lr_warmup_steps, config.max_train_steps // 10)
    return replace(config, lr_warmup_steps=min(config.lr_warmup_steps, longest))


def flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """The flat settings of a run record.

    Raises:
        UserError: where it is not the record of a training run.
    """
    parts = from_dict(RunSettings, settings, "the record is not a training run's")
    ebm, training = to_dict(parts.ebm), to_dict(parts.training)
    path = {"path": ebm["path"]["name"], "c": ebm["path"]["c"]}
    path["path_arguments"] = ebm["path"]["arguments"]
    return {**training, **ebm["net"], **path, **{key: ebm[key] for key in EBM_KEYS}}


def record(config: EBMConfig, training: TrainingConfig) -> dict[str, Any]:
    """The settings that a run record holds, and that ``resolve`` takes as its base."""
    return {"ebm": to_dict(config), "training": to_dict(training)}


def _only(settings: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key in keys}


def _condition_dim(name: str) -> int:
    return AUGMENTATIONS[choose("augmentation", name, AUGMENTATIONS)].dim


def _is_of(base: dict[str, Any] | None, given: dict[str, Any], data: ImageData) -> bool:
    """Whether the margin of a recorded run is that of this one: of the same levels and the same
    dequantisation."""
    if base is None or "dequantisation" in given:
        return False
    return base["ebm"]["num_levels"] == data.num_levels


def _eps(config: EBMConfig, space: Space, is_given: bool) -> float:
    """The margin of a configuration: by its dequantiser where that says how far to go."""
    choose("dequantisation", config.dequantisation, DEQUANTISERS)
    dequantiser, path = DEQUANTISERS[config.dequantisation](), build_path(config)
    t = 1.0 if is_given else dequantiser.time(config.num_levels, space, path)
    return config.eps if t == 1.0 else 1 - t


def _space(merged: dict[str, Any], data: ImageData, flow: Flow | None) -> Space:
    """The fitted space of a run.

    Raises:
        UserError: where the name and the flow, or the flow and the images, do not agree.
    """
    name = merged.get("space", EBMConfig.space if flow is None else flow.config.space)
    if flow is None:
        if choose("space", name, SPACES) != EBMConfig.space:
            raise UserError(
                f"--space {name} is a flow's: give --flow, a folder made by train/flow.py"
            )
        return build_space(name, data.image_shape, data.num_levels, {})
    if name != flow.config.space:
        raise UserError(
            f"--space is {name}, but the flow is {flow.config.space}: leave --space out"
        )
    made, found = form_of(flow.config), form_of(data)
    if made != found:
        raise UserError(
            f"the flow was made for images of {made}, {data.name} has {found}: fit a flow to this "
            "data set"
        )
    return flow.space


def _moment(c: float | str, data: ImageData, space: Space) -> float:
    if c != "data":
        try:
            return parsed(Positive, str(c))
        except ValueError:
            raise UserError(
                f"--c takes a number above 0 or the word data, not '{shortened(c)}'"
            ) from None
    middle = dequantise(data.train, data.num_levels, torch.full(data.train.shape, 0.5))
    return second_moment(space.encode(middle))
