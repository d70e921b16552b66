"""Progress and learning rate of a training run whose length is set in steps or minutes.

The progress of a run rises from 0 to 1: the fraction of its steps, or of its time. The learning
rate is a function of the step and the progress, so a run in minutes decays in time at any speed.
"""

import math

from ebm_app.training.config import Run

#: Values of ``lr_scheduler``
WSD, COSINE = "wsd", "cosine"
SCHEDULES = (WSD, COSINE)
#: Default warm-up: max steps, and max fraction of the run
WARMUP_STEPS, WARMUP_SHARE = 100, 0.1
#: Default fraction of the run over which ``wsd`` decays
DECAY_SHARE = 0.25


def progress(config: Run, step: int, elapsed: float, reserved: float) -> float:
    """Return the progress of a run, which ends at 1.

    Args:
        config: settings of the run.
        step: number of completed steps.
        elapsed: seconds since the first step.
        reserved: seconds for the start-up and the last validation of a run in minutes.

    >>> from ebm_app.training.config import Train
    >>> progress(Train(max_train_steps=8), 2, 7.0, 0.0)
    0.25
    >>> progress(Train(max_train_minutes=2.0), 2, 25.0, 20.0)
    0.25
    """
    if config.max_train_steps is not None:
        return step / config.max_train_steps
    return elapsed / max(60 * config.max_train_minutes - reserved, 1e-9)


def decay_share(config: Run) -> float:
    """Return the fraction of the run over which ``wsd`` decays.

    >>> from ebm_app.training.config import Train
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

    >>> from ebm_app.training.config import Train
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
