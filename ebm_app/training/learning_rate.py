"""How the learning rate goes with the step, by the name that ``--lr_scheduler`` takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ebm_app.io.fields import Count, PositiveInt
from ebm_app.models.config import LoopConfig


class Schedule(NamedTuple):
    """A learning rate that rises over the warm-up steps and then follows its own rule: what that
    is in words, and the schedule of a run by it."""

    note: str
    build: Callable[[Optimizer, LoopConfig], LRScheduler]


#: until it falls, this rate does not depend on where a run ends
OPEN_ENDED = "constant_with_warmup"
SCHEDULES: dict[str, Schedule] = {
    "cosine": Schedule(
        "half a cosine down to 0",
        lambda optimizer, config: _with_warmup("cosine", optimizer, config),
    ),
    "linear": Schedule(
        "a straight line down to 0",
        lambda optimizer, config: _with_warmup("linear", optimizer, config),
    ),
    OPEN_ENDED: Schedule(
        "constant, and falling over the last --lr_decay_steps",
        lambda optimizer, config: LambdaLR(
            optimizer, lambda step: open_ended_factor(config, step)
        ),
    ),
}


def _with_warmup(name: str, optimizer: Optimizer, config: LoopConfig) -> LRScheduler:
    from diffusers.optimization import get_scheduler  # seconds to import, only for this

    steps = {"num_warmup_steps": config.lr_warmup_steps}
    return get_scheduler(name, optimizer, **steps, num_training_steps=config.max_train_steps)


def open_ended_factor(config: LoopConfig, step: int) -> float:
    """min(1, step / warm-up steps, steps left / decay steps): the share of the peak rate that a
    step takes.

    Source of the fall at the end of a constant rate: Hu et al. 2024, arXiv:2404.06395.
    """
    factor = 1.0
    if step < config.lr_warmup_steps:
        factor = step / config.lr_warmup_steps
    left = config.max_train_steps - step
    if left < config.lr_decay_steps:
        factor = min(factor, left / config.lr_decay_steps)
    return factor


@dataclass(frozen=True)
class Horizon:
    """Of the settings of a training, those that say when its rate falls."""

    max_train_steps: PositiveInt
    lr_decay_steps: Count = 0

    @property
    def first_falling_step(self) -> int:
        """The first step whose rate depends on where an open-ended run ends."""
        return self.max_train_steps - self.lr_decay_steps
