"""Size of the network for a run in minutes, by the speed of this machine."""

import time

import torch
from accelerate.utils import broadcast_object_list

from ebm_app.config import UNetConfig
from ebm_app.data.images import ImageData
from ebm_app.nets.unet import NETS
from ebm_app.training.config import AUTO, Train
from ebm_app.training.recipes import recipe
from ebm_app.utils.fields import from_attributes
from ebm_app.utils.processes import make_accelerator

#: Training images from which on "small" is better than "tiny", see docs/training.md ("Recipes")
SMALL_IMAGES = 50_000
#: Timed passes; the fastest one counts, since other programs only slow passes down
NUM_PASSES = 4


def fitting_size(run: Train, data: ImageData, space: str) -> str:
    """Return the size of the network for a run of ``size`` "auto": "tiny" for a run in minutes in
    which the small network could process fewer than ``SMALL_IMAGES`` training images, and
    otherwise "small". The main process decides for all processes."""
    base = recipe(data.name, data.image_shape, data.num_levels, space=space)
    minutes = run.max_train_minutes or base.max_train_minutes
    if run.size != AUTO:
        return run.size
    if run.max_train_steps is not None or minutes is None:
        return "small"
    accelerator = make_accelerator(run.mixed_precision, run.device)
    with accelerator.autocast():
        speed = accelerator.num_processes / seconds_per_image(base, data, accelerator.device)
    size = "small" if 60 * minutes * speed >= SMALL_IMAGES else "tiny"
    return broadcast_object_list([size])[0]


def seconds_per_image(run: Train, data: ImageData, device: torch.device) -> float:
    """Return the seconds of a forward and a backward pass of a run's network per image."""
    channels, height, width = data.image_shape
    shape, outputs = (channels * (1 + 2 * len(run.input_frequencies)), height, width), 2 * channels
    net = NETS[run.network](shape, outputs, from_attributes(UNetConfig, run)).to(device)
    x = torch.randn(run.train_batch_size, *shape, device=device)
    t = torch.rand(run.train_batch_size, device=device)
    times = []
    for _ in range(1 + NUM_PASSES):  # the first pass allocates memory
        begin = time.perf_counter()
        net(x, t).float().sum().backward()
        torch.stack([weight.grad.sum() for weight in net.parameters()]).sum().item()
        times.append(time.perf_counter() - begin)
    return min(times[1:]) / run.train_batch_size
