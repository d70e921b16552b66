"""Plan of a run: its folder, length, learning rates, and the settings that a resume may change.

This module does not import torch, so that ``--help`` is fast.
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from ebm_app.config import LoopConfig
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PositiveInt, configuration, setting

#: Schedule that is independent of the length of the run until the final decay
CONSTANT = "constant_with_warmup"
#: Names of ``--lr_scheduler``
SCHEDULES = ("cosine", CONSTANT)
#: Settings of the length of a run
LENGTHS = ("max_train_steps", "max_train_minutes")
#: Max default warm-up steps, and max default decay of the averaged weights
LONGEST_WARMUP, MAX_DECAY = 100, 0.9999
#: Default number of validations and checkpoints per run
NUM_VALIDATIONS, NUM_CHECKPOINTS = 10, 20
#: Settings that may change when a run is resumed, since they do not affect the weights. The
#: minutes are free because the number of steps is compared.
FREE_ON_RESUME = frozenset(
    "max_train_minutes checkpointing_steps checkpoints_total_limit logging_steps report_to "
    "validation_steps num_preview_images num_nodes gradient_checkpointing class_names".split()
)

Config = TypeVar("Config", bound=LoopConfig)


@configuration(kw_only=True)
class RunOptions:
    """Output folder and start of a run. ``flags`` are stored in the run record and restored when
    the run is resumed."""

    output_dir: Path = setting("folder of the run", Path("runs/model"))
    overwrite_output_dir: bool = setting(
        "delete a previous run in the output folder, unless it is resumed", False
    )
    resume_from_checkpoint: str | None = setting(
        "checkpoint to resume from: latest or a path", None
    )
    expect_processes: PositiveInt | None = setting(
        "expected number of processes; fails if it differs", None
    )
    device: str = setting("auto, cpu or cuda", "auto")
    init_from: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)


def override(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings overridden by a user's flags. A length in steps replaces one in minutes,
    and vice versa.

    >>> override({"max_train_steps": 8000, "seed": 1}, {"max_train_minutes": 10.0})
    {'seed': 1, 'max_train_minutes': 10.0}
    """
    lengths = [name for name in LENGTHS if flags.get(name) is not None]
    if len(lengths) == 2:
        raise UserError(
            "--max_train_steps and --max_train_minutes both set the length of the run. Use one of "
            "them."
        )
    kept = {key: value for key, value in settings.items() if not (lengths and key in LENGTHS)}
    return {**kept, **flags}


def flags_on_resume(recorded: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that override the recorded settings of a resumed run.

    Flags "auto" and None are ignored, because the record has their resolved values. A run with a
    length in minutes keeps its planned number of steps and ``validation_images``.

    >>> flags_on_resume({"max_train_minutes": 10.0}, {"max_train_minutes": 10.0, "seed": 1})
    {'seed': 1}
    """
    minutes, chosen = recorded.get("max_train_minutes"), flags.get("max_train_minutes")
    if recorded and chosen not in (None, minutes):
        raise UserError(
            f"--max_train_minutes is {chosen:g}, but the run to resume has {minutes}. Leave it "
            "out, or start a new run in another --output_dir."
        )
    planned = {"size", "max_train_minutes"} | ({"validation_images"} if minutes else set())
    return {
        name: value
        for name, value in flags.items()
        if value not in (None, "auto") and name not in planned
    }


def complete(config: Config, num_steps: int) -> Config:
    """Return the settings of a run of ``num_steps`` steps, with defaults for warm-up, weight
    averaging, validations and checkpoints that are None.

    >>> complete(LoopConfig(ema_decay=0.9), 2000).lr_warmup_steps
    100
    >>> complete(LoopConfig(), 500).ema_decay
    0.98
    """
    shares = {
        "lr_warmup_steps": min(LONGEST_WARMUP, num_steps // 10),
        "ema_decay": min(MAX_DECAY, max(0.0, 1 - 10 / num_steps)),
        "validation_steps": math.ceil(num_steps / NUM_VALIDATIONS),
        "checkpointing_steps": math.ceil(num_steps / NUM_CHECKPOINTS),
    }
    missing = {name: value for name, value in shares.items() if getattr(config, name) is None}
    return replace(config, max_train_steps=num_steps, **missing)


def changes_of(
    before: Mapping[str, Any], now: Mapping[str, Any], free: AbstractSet[str]
) -> list[str]:
    """Return a message for each setting that changed, except the ``free`` settings."""
    return [
        f"{key} was {shorten(before.get(key))}, now {shorten(value)}"
        for key, value in now.items()
        if key not in free and not _is_same(before.get(key), value)
    ]


def _is_same(before: Any, now: Any) -> bool:
    """Whether two values are equal, with a tolerance for computed floats such as eps."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-9)
    return before == now


def learning_rate(config: LoopConfig, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then either a half cosine to 0 at the
    last step, or a constant rate and a linear decay to 0 over the last ``lr_decay_steps`` steps
    (Hu et al. 2024, arXiv:2404.06395).

    >>> config = LoopConfig(learning_rate=1.0, lr_warmup_steps=4, max_train_steps=8)
    >>> learning_rate(config, 1), learning_rate(config, 4), round(learning_rate(config, 6), 3)
    (0.25, 1.0, 0.5)

    Args:
        config: complete settings.
    """
    warmup, decay, last = config.lr_warmup_steps, config.lr_decay_steps, config.max_train_steps
    rise = step / warmup if step < warmup else 1.0
    if config.lr_scheduler == CONSTANT:
        fall = min(1.0, (last - step) / decay) if decay else 1.0
    else:
        progress = max(0, step - warmup) / max(1, last - warmup)
        fall = max(0.0, 0.5 * (1 + math.cos(math.pi * progress)))
    return config.learning_rate * min(rise, fall)
