"""How the learning rate goes with the step."""

from diffusers.optimization import get_scheduler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ebm_app.models.config import LoopConfig

#: this rate does not depend on where a run will end until it begins to fall
OPEN_ENDED = "constant_with_warmup"
SCHEDULERS = (OPEN_ENDED, "cosine", "linear")


def scheduler_of(optimizer: Optimizer, config: LoopConfig) -> LRScheduler:
    """The schedule that a configuration names; the open-ended one is written here, as it may fall
    at its end."""
    if config.lr_scheduler == OPEN_ENDED:
        return LambdaLR(optimizer, lambda step: open_ended_factor(config, step))
    return get_scheduler(
        config.lr_scheduler,
        optimizer,
        num_warmup_steps=config.lr_warmup_steps,
        num_training_steps=config.max_train_steps,
    )


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


def first_falling_step(training: dict[str, object]) -> int:
    """The first step whose rate depends on where an open-ended run ends, by its settings."""
    return training["max_train_steps"] - training.get("lr_decay_steps", 0)
