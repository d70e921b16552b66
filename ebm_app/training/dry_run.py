"""Settings and cost of a run on this machine, without training it."""

import resource
import time
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ebm_app.config import EBMConfig
from ebm_app.data.datasets import ImageData
from ebm_app.flow import Flow
from ebm_app.nets.build import num_channels
from ebm_app.nets.unet import NETS
from ebm_app.training.config import Train
from ebm_app.training.ebm import build_trainer, make_config
from ebm_app.training.trainer import NUM_VALIDATIONS, Trainer
from ebm_app.utils.fields import to_dict
from ebm_app.utils.processes import make_accelerator

#: Steps before the measurement, for compilation and memory allocation, and measured steps
WARMUP_STEPS, MEASURED_STEPS = 2, 5
#: Images of the measured validation
FEW_IMAGES = 4


def dry_run(config: Train, data: ImageData, flow: Flow | None) -> dict[str, Any]:
    """Measure a few steps and a validation on this machine, without writing files.

    Returns:
        The settings of the run, and its cost: the weights and the operations per training image of
        the network, seconds per step and per validation, steps and minutes in total, and the peak
        memory in GiB.
    """
    ebm_config = make_config(config, data, flow)
    accelerator = make_accelerator(
        config.mixed_precision, config.device, dynamo_backend=config.compile
    )
    config = replace(config, mixed_precision=accelerator.mixed_precision)
    trainer = build_trainer(accelerator, config, ebm_config, data, flow)
    step = seconds_per_step(trainer)
    validation = trainer.seconds_of_validation(FEW_IMAGES) / FEW_IMAGES * len(trainer.validation)
    if config.max_train_steps is None:
        minutes = config.max_train_minutes
        steps = round(60 * minutes / step)
    else:
        steps = config.max_train_steps
        minutes = (steps * step + NUM_VALIDATIONS * validation) / 60
    if accelerator.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "train": to_dict(config),
        "ebm": to_dict(ebm_config),
        **network_cost(ebm_config),
        "seconds_per_step": step,
        "seconds_per_validation": validation,
        "steps": steps,
        "minutes": minutes,
        "peak_memory_gib": memory / 2**30,
    }


def seconds_per_step(trainer: Trainer) -> float:
    """Return the mean time of a few training steps."""
    for _ in range(WARMUP_STEPS):
        trainer.train_step()
    trainer.losses()  # waits for the device
    begin = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        trainer.train_step()
    trainer.losses()
    return (time.perf_counter() - begin) / MEASURED_STEPS


def network_cost(config: EBMConfig) -> dict[str, int]:
    """Return the number of weights of the network, and of operations per training image: a forward
    and a backward pass, two per multiply-add. Runs on the meta device.

    >>> network_cost(EBMConfig("digits", (1, 8, 8), num_levels=17))
    {'weights': 634562, 'operations': 90087424}
    """
    (_, height, width), (inputs, outputs) = config.image_shape, num_channels(config)
    with torch.device("meta"):
        net = NETS[config.network]((inputs, height, width), outputs, config.net)
        x, t = torch.zeros(1, inputs, height, width), torch.zeros(1)
    with FlopCounterMode(display=False) as counter:
        net(x, t).sum().backward()
    weights = sum(weight.numel() for weight in net.parameters())
    return {"weights": weights, "operations": counter.get_total_flops()}
