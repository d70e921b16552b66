"""Sharing work among processes by index, so that the result does not depend on their number."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, broadcast_object_list
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose
from ebm_app.utils.start import explained

T = TypeVar("T")
Wrap = Callable[[Sequence[Tensor]], Iterable[Tensor]]
#: what accelerate's environment may turn on: a network shared out among processes
SHARED_OUT = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")


def resolve_device(name: str) -> str:
    """The device to use for "auto", "cpu" or "cuda"."""
    if choose("device", name, ("auto", "cpu", "cuda")) == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is available: give --device cpu")
    return name


def make_accelerator(
    mixed_precision: str = "no", device: str = "auto", **options: Any
) -> Accelerator:
    """An Accelerator that also joins the CPU processes of torchrun or ``accelerate launch``; a
    ``mixed_precision`` of "no" leaves the choice to the configuration of the latter.

    Raises:
        UserError: where that configuration shares out a network, which accelerate does on a GPU
            only, and without a word not on a CPU: averages and checkpoints are of whole ones.
    """
    for name in SHARED_OUT:
        if os.environ.get(name, "").lower() == "true":
            raise UserError(
                f"{name} of the accelerate configuration is not supported: use --multi_gpu in its "
                "place, by which every process has the whole network"
            )
    return Accelerator(
        cpu=resolve_device(device) == "cpu",
        mixed_precision=None if mixed_precision == "no" else mixed_precision,
        # batches are accumulated by the loop itself
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        **options,
    )


def describe_devices(accelerator: Accelerator) -> str:
    """What a run computes on: "1 x cpu", "8 x NVIDIA H100, compiled by inductor"."""
    device, backend = accelerator.device, accelerator.state.dynamo_plugin.backend.value.lower()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    compiled = "" if backend == "no" else f", compiled by {backend}"
    return f"{accelerator.num_processes} x {name}{compiled}"


def shut_down(accelerator: Accelerator, *prepared: Any) -> None:
    """End a run: release the prepared objects, meet, and close trackers and process group.

    In this order, because gloo may abort a process whose objects outlive the group.
    """
    accelerator.free_memory(*prepared)
    accelerator.wait_for_everyone()
    accelerator.end_training()


def sharded(
    accelerator: Accelerator,
    num: int,
    columns: int,
    batch_size: int,
    function: Callable[[Tensor], Tensor],
    wrap: Wrap = iter,
) -> Tensor:
    """Rows (num, columns) float64 of ``function``, which maps indices (b,) to rows (b, columns).

    Process r of W computes the indices r, r + W, ...; every process returns all rows.
    ``wrap`` is put around the batches, of which every process has as many.
    """
    own = torch.arange(accelerator.process_index, num, accelerator.num_processes)
    table = torch.zeros(num, columns, dtype=torch.float64)
    longest = -(-num // accelerator.num_processes)
    # as many batches on every process, of which the last may be empty
    batches = [own[begin : begin + batch_size] for begin in range(0, longest, batch_size)]
    for rows in wrap(batches):
        if len(rows):
            table[rows] = function(rows).double().cpu()
    return accelerator.reduce(table.to(accelerator.device), "sum").cpu()


def on_main(accelerator: Accelerator, action: Callable[[], T]) -> T | None:
    """What ``action`` returns on the main process, which alone takes it; where it raised a
    UserError there, or the disk refused, all processes raise one."""
    result, message = None, [None]
    if accelerator.is_main_process:
        try:
            result = action()
        except (UserError, OSError) as error:
            message = [explained(error)]
    broadcast_object_list(message)
    if message[0] is not None:
        raise UserError(message[0])
    return result
