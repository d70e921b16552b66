"""The plan of a run: its folder, its start, its learning rates and its periodic actions.

Imports no torch, so that ``--help`` is fast.
"""

import math
from pathlib import Path

from ebm_app.config import LoopConfig
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting

#: Learning rate schedule that does not depend on the length of the run until its final decay
CONSTANT = "constant_with_warmup"
#: Names of ``--lr_scheduler``
SCHEDULES = ("cosine", CONSTANT)


@configuration(kw_only=True)
class RunOptions:
    """Where a run is written and how it starts."""

    output_dir: Path | None = setting(
        "folder of the run; runs/<dataset>-<kind> if not given", None
    )
    overwrite_output_dir: bool = setting("replace the run in the output folder", False)
    resume_from_checkpoint: str | None = setting(
        "checkpoint to resume from: latest, or a path", None
    )
    device: str = setting("auto, cpu or cuda", "auto")
    init_from: str | None = None

    def __post_init__(self) -> None:
        if self.resume_from_checkpoint and self.overwrite_output_dir:
            raise UserError(
                "--resume_from_checkpoint resumes the run that --overwrite_output_dir deletes. "
                "Use only one of them."
            )


class Schedule:
    """Learning rates and periodic actions of a run of ``num_steps`` optimizer steps.

    >>> config = LoopConfig(learning_rate=1.0, lr_warmup_steps=4, max_train_steps=8)
    >>> schedule = Schedule(config)
    >>> schedule.learning_rate(1), schedule.learning_rate(4), round(schedule.learning_rate(6), 3)
    (0.25, 1.0, 0.5)
    >>> schedule.is_due(3, 3), schedule.is_due(4, 3), schedule.is_due(8, 3)
    (True, False, True)
    """

    def __init__(self, config: LoopConfig) -> None:
        self.config, self.num_steps = config, config.max_train_steps

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warmup, then a half cosine to 0 at the last
        step, or a constant with a linear decay to 0 over the last ``lr_decay_steps``.

        Source of the constant schedule: Hu et al. 2024, arXiv:2404.06395.
        """
        config = self.config
        warmup, decay = config.lr_warmup_steps, config.lr_decay_steps
        rise = step / warmup if step < warmup else 1.0
        if config.lr_scheduler == CONSTANT:
            fall = min(1.0, (self.num_steps - step) / decay) if decay else 1.0
        else:
            progress = max(0, step - warmup) / max(1, self.num_steps - warmup)
            fall = max(0.0, 0.5 * (1 + math.cos(math.pi * progress)))
        return config.learning_rate * min(rise, fall)

    def is_due(self, step: int, period: int) -> bool:
        """Whether an action of this period is due after ``step``; every action is due at the
        end."""
        return step % period == 0 or step == self.num_steps
