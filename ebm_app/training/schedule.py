"""Progress, learning rate and time of a training run whose length is set in steps or minutes.

The progress of a run rises from 0 to 1: the fraction of its steps, or of its time. The learning
rate is a function of the step and the progress, so a run in minutes decays in time at any speed.

One rule divides the time of a run in minutes: start-up, validations with previews, and checkpoints
take at most ``OTHER_SHARE`` of it. Any run has one step, one validation and one checkpoint.
"""

import math
import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from ebm_app.training.checkpoint import State
from ebm_app.training.settings import Run

#: Values of ``lr_scheduler``
WSD, COSINE = "wsd", "cosine"
SCHEDULES = (WSD, COSINE)
#: Default warm-up: max steps, and max fraction of the run
WARMUP_STEPS, WARMUP_SHARE = 100, 0.1
#: Default fraction of the run over which ``wsd`` decays
DECAY_SHARE = 0.25
#: Default max number of validations and checkpoints per run, and min steps between validations
NUM_VALIDATIONS, NUM_CHECKPOINTS, VALIDATION_STEPS = 10, 20, 100
#: Max fraction of a run in minutes that is not spent on training steps
OTHER_SHARE = 0.2


class Clock:
    """Clock of a run, which counts ``state.seconds``.

    Args:
        start: start of the first lap, a value of ``time.perf_counter``.
        is_shared: whether the clock of the main process holds for all, since processes that
            disagree would wait for each other.
    """

    def __init__(
        self, accelerator: Accelerator, state: State, start: float, is_shared: bool
    ) -> None:
        self.accelerator, self.state, self.last = accelerator, state, start
        self.is_shared = is_shared and accelerator.num_processes > 1

    def lap(self) -> float:
        """Return the seconds since the last lap, and add them to those of the run."""
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        if self.is_shared:
            value = torch.tensor(seconds, dtype=torch.float64, device=self.accelerator.device)
            seconds = broadcast(value).item()
        self.state.seconds += seconds
        return seconds


def advance(config: Run, state: State) -> None:
    """Update the progress of a run after a step, and the step at which its learning rate began to
    decay."""
    state.previous_progress, state.progress = state.progress, progress(config, state)
    if config.lr_scheduler == WSD and state.progress < 1 - decay_share(config):
        state.decay_began = None
    elif config.lr_scheduler == WSD and state.decay_began is None:
        state.decay_began = state.step


def progress(config: Run, state: State) -> float:
    """Return the progress of a run. A run in minutes keeps the time of its last validation and
    checkpoint.

    >>> from ebm_app.training.settings import Train
    >>> progress(Train(max_train_steps=8), State({}, 1, step=2))
    0.25
    >>> state = State({}, 1, seconds=45.0, start_up_seconds=20.0)
    >>> progress(Train(max_train_minutes=2.0), state)
    0.25
    """
    if config.max_train_steps is not None:
        return state.step / config.max_train_steps
    reserved = state.start_up_seconds + state.last_validation_seconds + state.last_save_seconds
    available = max(60 * config.max_train_minutes - reserved, 1e-9)
    return (state.seconds - state.start_up_seconds) / available


def seconds_left(config: Run, state: State) -> float:
    """Return how many seconds a run in minutes may still spend on anything but training."""
    spent = state.seconds - state.training_seconds
    return OTHER_SHARE * 60 * config.max_train_minutes - spent


def is_due(state: State, period: int | None, count: int = 1) -> bool:
    """Whether an action is due after this step: every ``period`` steps, or ``count`` times per
    run if ``period`` is None. Every action is due at the end of the run."""
    if state.progress >= 1:
        return True
    if period is not None:
        return state.step % period == 0
    return int(count * state.progress) > int(count * state.previous_progress)


def is_validation_due(config: Run, state: State) -> bool:
    """Whether a validation is due. By default, those of a run in steps are at least
    ``VALIDATION_STEPS`` apart, and none interrupts the decay of a run in minutes, since a slow one
    would cut it short."""
    if state.step == state.validated:
        return False
    if not is_due(state, config.validation_steps, NUM_VALIDATIONS):
        return False
    if state.progress >= 1 or config.validation_steps is not None:
        return True
    if config.max_train_steps is not None:
        return state.validated == 0 or state.step - state.validated >= VALIDATION_STEPS
    # the first one takes about as long as a step, if it has few images
    validation = state.last_validation_seconds or state.training_seconds / state.step
    is_free = 2 * validation + state.last_save_seconds <= seconds_left(config, state)
    return is_free and state.decay_began is None


def is_save_due(config: Run, state: State) -> bool:
    """Whether a checkpoint is due."""
    if state.progress >= 1 or config.max_train_steps is not None:
        return is_due(state, config.checkpointing_steps, NUM_CHECKPOINTS)
    needed = state.last_validation_seconds + 2 * state.last_save_seconds
    is_free = needed <= seconds_left(config, state)
    return is_free and is_due(state, config.checkpointing_steps, NUM_CHECKPOINTS)


def decay_share(config: Run) -> float:
    """Return the fraction of the run over which ``wsd`` decays.

    >>> from ebm_app.training.settings import Train
    >>> decay_share(Train(max_train_steps=8, lr_decay_steps=4))
    0.5
    """
    if config.lr_decay_steps is None:
        return DECAY_SHARE
    return config.lr_decay_steps / config.max_train_steps


def learning_rate(config: Run, step: int, progress: float) -> float:
    """Return the learning rate of the step after ``step`` steps: a linear warm-up to a constant
    rate, then a linear decay to 0 at progress 1 (``wsd``; Hu et al. 2024, arXiv:2404.06395), or
    half a cosine.

    >>> from ebm_app.training.settings import Train
    >>> config = Train(learning_rate=1.0, lr_warmup_steps=4, max_train_steps=80)
    >>> learning_rate(config, 1, 1 / 80), learning_rate(config, 40, 0.5)
    (0.25, 1.0)
    >>> learning_rate(config, 70, 0.875)
    0.5
    """
    if config.lr_warmup_steps is None:
        rise = max(step / WARMUP_STEPS, progress / WARMUP_SHARE)
    else:
        rise = step / config.lr_warmup_steps if config.lr_warmup_steps else 1.0
    if config.lr_scheduler == COSINE:
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    else:
        share = decay_share(config)
        fall = max(0.0, 1 - progress) / share if share else 1.0
    return config.learning_rate * min(1.0, rise, fall)
