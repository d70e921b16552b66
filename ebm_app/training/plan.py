"""The plan of a run: its folder, its length, what a resume may change, and its learning rates.

Imports no torch, so that ``--help`` is fast.
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from ebm_app.config import LoopConfig
from ebm_app.folders import upgrade
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import PositiveInt, configuration, setting

#: Learning rate schedule that does not depend on the length of the run until its final decay
CONSTANT = "constant_with_warmup"
#: Names of ``--lr_scheduler``
SCHEDULES = ("cosine", CONSTANT)
#: Settings for the length of a run
LENGTHS = ("max_train_steps", "max_train_minutes")
#: Max warm-up steps, and max decay of the averaged weights, if derived from the number of steps
LONGEST_WARMUP, MAX_DECAY = 100, 0.9999
#: Validations and checkpoints per run, if their periods are derived from the number of steps
NUM_VALIDATIONS, NUM_CHECKPOINTS = 10, 20
#: Settings that may change when a run is resumed, since they do not affect the weights: the number
#: of steps is compared, whatever the minutes
FREE_ON_RESUME = frozenset(
    "max_train_minutes checkpointing_steps checkpoints_total_limit logging_steps report_to "
    "validation_steps num_preview_images num_nodes gradient_checkpointing".split()
)

Config = TypeVar("Config", bound=LoopConfig)


@configuration(kw_only=True)
class RunOptions:
    """Where a run is written and how it starts. ``flags`` are kept in its record: a resumed run
    restores them."""

    output_dir: Path = setting("folder of the run", Path("runs/model"))
    overwrite_output_dir: bool = setting(
        "replace the run in the output folder, unless it is resumed", False
    )
    resume_from_checkpoint: str | None = setting(
        "checkpoint to resume from: latest, or a path", None
    )
    expect_processes: PositiveInt | None = setting(
        "number of processes; another number is an error", None
    )
    device: str = setting("auto, cpu or cuda", "auto")
    init_from: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)


def override(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings overridden by a user's flags. A length of the run in one unit, steps or
    minutes, replaces one in the other.

    >>> override({"max_train_steps": 8000, "seed": 1}, {"max_train_minutes": 10.0})
    {'seed': 1, 'max_train_minutes': 10.0}
    """
    lengths = [name for name in LENGTHS if flags.get(name) is not None]
    if len(lengths) == 2:
        raise UserError(
            "--max_train_steps and --max_train_minutes both set the length of the run. Use only "
            "one of them."
        )
    kept = {key: value for key, value in settings.items() if not (lengths and key in LENGTHS)}
    return {**kept, **flags}


def flags_on_resume(recorded: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that override the recorded settings of a run that is resumed.

    Recorded settings hold what "auto" and None became. A run in minutes keeps what it was planned
    to: its number of steps and its ``validation_images``.

    >>> flags_on_resume({"max_train_minutes": 10.0}, {"max_train_minutes": 10.0, "seed": 1})
    {'seed': 1}
    """
    minutes, chosen = recorded.get("max_train_minutes"), flags.get("max_train_minutes")
    if recorded and chosen not in (None, minutes):
        raise UserError(
            f"--max_train_minutes was {minutes} in the run to resume, now {chosen:g}. Leave it "
            "out, or start a new run in another --output_dir."
        )
    planned = {"size", "max_train_minutes"} | ({"validation_images"} if minutes else set())
    return {
        name: value
        for name, value in flags.items()
        if value not in (None, "auto") and name not in planned
    }


def complete(config: Config, num_steps: int) -> Config:
    """Return the settings of a run of ``num_steps`` steps. Settings that are None become a share
    of the run: warm-up, averaging of the weights, validations and checkpoints.

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
    """Return a message for each setting that differs from ``before``, settings of this version or
    an earlier one, except the ``free`` ones."""
    before = upgrade(before, now)
    return [
        f"{key} was {shorten(before.get(key))}, now {shorten(value)}"
        for key, value in now.items()
        if key not in free and not _is_same(before.get(key), value)
    ]


def _is_same(before: Any, now: Any) -> bool:
    """Whether two values are equal, floats up to rounding: some, such as eps, are computed."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-9)
    return before == now


def learning_rate(config: LoopConfig, step: int) -> float:
    """Return the learning rate of a step: linear warmup, then a half cosine to 0 at the last
    step, or a constant with a linear decay to 0 over the last ``lr_decay_steps``.

    Source of the constant schedule: Hu et al. 2024, arXiv:2404.06395.

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
