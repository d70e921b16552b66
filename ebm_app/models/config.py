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
from ebm_app.fields import setting
from ebm_app.nets.unet import UNetConfig

FORMAT_VERSION = 1
T = TypeVar("T")


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
    space: str = setting("where the path lives; with --flow its kind", "ambient")
    space_arguments: dict[str, float] = field(default_factory=dict)
    net_input: str = setting("in a latent space, what the network reads", "u", rare=True)
    dequantisation: str = setting("how grey levels become continuous", "uniform")
    path: PathConfig = PathConfig()
    eps: float = setting("margin of the times at t = 1", 5e-7, rare=True)
    net: UNetConfig = UNetConfig()
    prediction: str = setting("what the network predicts", "moments", rare=True)
    time_input: str = setting("the time that the network reads", "clock", rare=True)
    stein_head: bool = True
    input_frequencies: tuple[float, ...] = setting(
        "Fourier features of the network's input, in cycles", (), rare=True
    )
    condition_dim: int = 0
    num_nodes: int = setting("quadrature nodes of a likelihood", 32, rare=True)
    palette: tuple[int, ...] = ()
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class LoopConfig:
    """What every training has. Steps are optimizer steps; batches are per process."""

    max_train_steps: int = setting("optimizer steps", 3000)
    train_batch_size: int = setting("images in a batch of one process", 128)
    gradient_accumulation_steps: int = setting("batches in an optimizer step", 1, rare=True)
    learning_rate: float = setting("peak learning rate of Adam", 2e-3)
    lr_scheduler: str = setting("learning rate after the warm-up", "cosine", rare=True)
    lr_warmup_steps: int = setting("steps over which the learning rate rises", 100, rare=True)
    lr_decay_steps: int = setting(
        "last steps, over which the rate of constant_with_warmup falls to 0", 0, rare=True
    )
    adam_weight_decay: float = setting("decoupled weight decay", 0.0, rare=True)
    max_grad_norm: float = setting("gradients are clipped to this norm", 100.0, rare=True)
    ema_decay: float = setting("decay of the averaged weights, which are saved", 0.999, rare=True)
    mixed_precision: str = setting("numbers of the network's passes", "no")
    checkpointing_steps: int = setting("steps between checkpoints", 500)
    checkpoints_total_limit: int = setting("checkpoints kept", 3, rare=True)
    validation_steps: int = setting("steps between validations", 500)
    validation_images: int = setting("validation images scored, at most", 1000, rare=True)
    validation_repeats: int = setting("dequantisation draws of each", 4, rare=True)
    num_preview_images: int = setting("images drawn at each validation; 0 for none", 16, rare=True)
    logging_steps: int = setting("steps between lines of metrics.jsonl", 10, rare=True)
    report_to: str = setting("where the metrics are written", "jsonl", rare=True)
    seed: int = setting("seed of weights, batches and noise", 0)


@dataclass(frozen=True)
class TrainingConfig(LoopConfig):
    """How an energy-based model is trained."""

    objective: str = setting("what the network is trained on", "ctsm_m_deviance")
    weighting: str = setting("lambda(t)", "time_score", rare=True)
    time_sampler: str = setting("how training times are drawn", "arc_length", rare=True)
    augmentation: str = setting("changes of training images", "none")
    stein_factor: float = setting(
        "weight of the Stein head in the loss; 0 trains none", 1.0, rare=True
    )


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
    """The settings ``now`` that were others ``before``, but for the ``free`` ones, in words.

    An older record lacks settings that were added since: they were empty then.
    """
    return [
        f"{key} was {before.get(key)}, now {value}"
        for key, value in now.items()
        if key not in free and before.get(key, type(value)()) != value
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
