"""Configurations are frozen data: dataclasses read from JSON with strict keys.

``EBMConfig`` says what a model is and is stored beside its weights; ``LoopConfig`` and
``TrainingConfig`` say how it was trained and are stored with the run.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ebm_app.errors import UserError
from ebm_app.nets.unet import UNetConfig

FORMAT_VERSION = 1
T = TypeVar("T")


def _doc(text: str, default: Any) -> Any:
    """A field with a help text; a command line is made from it."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class PathConfig:
    """A path by its name in ``PATHS``, the second moment c it assumes, and its further
    arguments."""

    name: str = "linear_vp"
    c: float = 1.0
    arguments: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EBMConfig:
    """What an energy-based model of images is: all that is needed to build it and load its
    weights."""

    dataset: str
    image_shape: tuple[int, ...]
    num_levels: int
    space: str = "ambient"
    space_arguments: dict[str, float] = field(default_factory=dict)
    net_input: str = "u"
    dequantisation: str = "uniform"
    path: PathConfig = PathConfig()
    eps: float = 5e-7
    net: UNetConfig = UNetConfig()
    prediction: str = "moments"
    time_input: str = "clock"
    stein_head: bool = True
    input_frequencies: tuple[float, ...] = ()
    condition_dim: int = 0
    num_nodes: int = 32
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class LoopConfig:
    """What every training has. Steps are optimizer steps; batches are per process."""

    max_train_steps: int = _doc("optimizer steps", 3000)
    train_batch_size: int = _doc("images in a batch of one process", 128)
    gradient_accumulation_steps: int = _doc("batches added up in an optimizer step", 1)
    learning_rate: float = _doc("peak learning rate of Adam", 2e-3)
    lr_scheduler: str = _doc(
        "constant_with_warmup, linear or cosine: what follows the warm-up", "cosine"
    )
    lr_warmup_steps: int = _doc("steps over which the learning rate rises", 100)
    lr_decay_steps: int = _doc(
        "last steps over which a rate of constant_with_warmup falls to 0; others fall all along", 0
    )
    adam_weight_decay: float = _doc("decoupled weight decay", 0.0)
    max_grad_norm: float = _doc("gradients are clipped to this norm", 100.0)
    ema_decay: float = _doc("decay of the averaged weights, which are the ones saved", 0.999)
    mixed_precision: str = _doc("no, bf16 or fp16", "no")
    checkpointing_steps: int = _doc("steps between checkpoints", 500)
    checkpoints_total_limit: int = _doc("checkpoints kept", 3)
    validation_steps: int = _doc("steps between validations", 500)
    validation_images: int = _doc("validation images scored, at most", 1000)
    validation_repeats: int = _doc("dequantisation draws of each", 4)
    num_preview_images: int = _doc("images sampled at each validation; 0 for none", 16)
    logging_steps: int = _doc("steps between lines of metrics.jsonl", 10)
    report_to: str = _doc("jsonl, or tensorboard besides", "jsonl")
    seed: int = _doc("seed of weights, batches and noise", 0)


@dataclass(frozen=True)
class TrainingConfig(LoopConfig):
    """How an energy-based model is trained."""

    objective: str = _doc("ctsm, ctsm_v, ctsm_m or tsm", "ctsm_m")
    weighting: str = _doc("lambda(t): uniform, stein_score or time_score", "time_score")
    time_sampler: str = _doc("uniform, stratified, importance or arc_length", "arc_length")
    augmentation: str = _doc("changed copies of the training images: none or affine", "none")
    stein_factor: float = _doc("weight of the Stein head in the loss; 0 trains none", 1.0)


#: Settings of a run that may differ when it is resumed: they change no weight.
FREE_ON_RESUME = frozenset(
    {"checkpointing_steps", "checkpoints_total_limit", "logging_steps", "report_to"}
    | {"validation_steps", "num_preview_images", "num_nodes"}
)


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready data."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def changes_of(
    before: Mapping[str, Any], now: Mapping[str, Any], free: AbstractSet[str]
) -> list[str]:
    """The settings ``now`` that were others ``before``, but for the ``free`` ones, in words."""
    return [
        f"{key} was {before.get(key)}, now {value}"
        for key, value in now.items()
        if key not in free and before.get(key) != value
    ]


def from_dict(cls: type[T], data: dict[str, Any], where: str) -> T:
    """The dataclass ``cls`` from JSON data: every key known, every required key there, types
    right.

    Raises:
        UserError: naming the key and ``where`` it stands.
    """
    if not isinstance(data, dict):
        raise UserError(f"{where} must be a JSON object, not {type(data).__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise UserError(f"{where} has unknown keys: {', '.join(unknown)}")
    required = {
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(data)):
        raise UserError(f"{where} lacks keys: {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    values = {key: _convert(hints[key], value, f"{where}: {key}") for key, value in data.items()}
    return cls(**values)


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where)
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {
            key: _convert(typing.get_args(hint)[1], item, where) for key, item in value.items()
        }
    if origin is types.UnionType:
        return value if value is None else _convert(typing.get_args(hint)[0], value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        origin is None
        and isinstance(value, hint)
        and (hint is bool or not isinstance(value, bool))
    ):
        return value
    raise UserError(f"{where} has the wrong type: {value!r}")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: where the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): it may be truncated") from None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON object, indented."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
