"""Number of steps of a run whose length is set in minutes, and its cost on this machine.

The speed is measured before the run, so that it starts with a complete plan: learning rates are a
function of the step, and the run can be repeated from its record.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from tqdm.auto import tqdm

from ebm_app.training.config import NUM_VALIDATIONS, AnyRun, complete
from ebm_app.training.trainer import Trainer

#: Steps before the measurement, for compilation and memory allocation
WARMUP_STEPS = 2
#: Min measured steps, and share of the run spent on measuring
MIN_STEPS, MEASURED_SHARE = 3, 0.02
#: Max share of the run spent on one validation, and on all validations
VALIDATION_SHARE, VALIDATIONS_SHARE = 0.05, 0.1
#: Numbers of validation images with which the time of a validation is measured
FEW_IMAGES = (2, 4)
#: Number of steps of the measured run, for its learning rates
UNPLANNED_STEPS = 10**6


class Costs(NamedTuple):
    """Seconds per training step, per validation without images, and per validation image."""

    step: float
    validation: float
    image: float


def plan_by_time(
    accelerator: Accelerator,
    config: AnyRun,
    make_trainer: Callable[[AnyRun], Trainer],
    began: float,
) -> AnyRun:
    """Return the complete settings of a run that ends ``max_train_minutes`` after ``began``, a
    value of ``time.perf_counter()``.

    The speed is measured with a trainer that is discarded. Validations count towards the time. If
    they would take a large share of it, their number or their images are reduced. The main process
    decides for all processes.
    """
    budget, scaler = 60 * config.max_train_minutes, accelerator.scaler
    state = scaler and scaler.state_dict()
    costs = measure(make_trainer(complete(config, UNPLANNED_STEPS)), budget)
    accelerator.free_memory()
    if scaler:
        scaler.load_state_dict(state)
    left = budget - (time.perf_counter() - began)
    (config,) = broadcast_object_list([plan(config, costs, budget, left)])
    if accelerator.is_main_process:
        print(
            f"Training for {config.max_train_steps} steps of {costs.step:.2g} s, validating on "
            f"{config.validation_images} images every {config.validation_steps} steps.",
            file=sys.stderr,
        )
    return config


def plan(config: AnyRun, costs: Costs, budget: float, left: float) -> AnyRun:
    """Return the complete settings of a run.

    Args:
        config: settings without a number of steps.
        costs: measured times.
        budget, left: total and remaining seconds of the run.

    >>> from ebm_app.training.config import Train
    >>> config = plan(Train(), Costs(0.5, 1.0, 0.1), 600.0, 580.0)
    >>> config.max_train_steps, config.validation_steps, config.validation_images
    (1040, 520, 290)
    """
    longest = VALIDATION_SHARE * budget - costs.validation
    num_images = max(2, min(config.validation_images, int(longest / max(costs.image, 1e-9))))
    validation = max(1e-9, costs.validation + num_images * costs.image)
    count = max(1, min(NUM_VALIDATIONS, int(VALIDATIONS_SHARE * budget / validation)))
    if config.validation_steps is None:
        num_steps = max(1, int((left - count * validation) / costs.step))
        period = math.ceil(num_steps / count)
    else:
        period = config.validation_steps
        num_steps = max(1, int(left / (costs.step + validation / period)))
    config = replace(config, validation_steps=period, validation_images=num_images)
    return complete(config, num_steps)


def measure(trainer: Trainer, budget: float) -> Costs:
    """Measure the costs of a run before it starts. Only one validation is measured if it takes a
    large share of ``budget`` seconds."""
    with tqdm(desc="measure", leave=False, disable=None) as bar:
        for _ in range(WARMUP_STEPS):
            trainer.train_step()
        trainer.losses()  # waits for the device
        begin, num, is_enough = time.perf_counter(), 0, False
        while not is_enough:
            trainer.train_step()
            num += 1
            trainer.now.step += 1
            bar.update()
            is_long = time.perf_counter() - begin >= MEASURED_SHARE * budget
            (is_enough,) = broadcast_object_list([num >= MIN_STEPS and is_long])
        trainer.losses()
        step = (time.perf_counter() - begin) / num
    few, more = FEW_IMAGES
    first = validation_seconds(trainer, few)  # fills caches
    if first > MEASURED_SHARE * budget:
        return Costs(step, 0.0, first / few)
    short, long = validation_seconds(trainer, few), validation_seconds(trainer, more)
    image, begin = max(0.0, long - short) / (more - few), time.perf_counter()
    if num_previews := trainer.config.num_preview_images:
        trainer.ebm.sample(num_previews, seed=trainer.config.seed)
    preview = time.perf_counter() - begin
    return Costs(step, max(0.0, short - few * image) + preview, image)


def validation_seconds(trainer: Trainer, num_images: int) -> float:
    """Return the seconds of a validation on this number of images."""
    validation, noise = trainer.validation, trainer.noise
    trainer.validation, trainer.noise = validation[:num_images], noise[:, :num_images]
    trainer.ebm.eval()
    begin = time.perf_counter()
    trainer.validate()
    seconds = time.perf_counter() - begin
    trainer.validation, trainer.noise = validation, noise
    return seconds
