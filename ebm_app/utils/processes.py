"""Sharing work among processes by index, so that the result does not depend on their number."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Self, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, broadcast_object_list
from torch import Tensor

from ebm_app.utils.errors import Interrupted, UserError, user_message
from ebm_app.utils.registry import choose

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
            message = [user_message(error)]
    broadcast_object_list(message)
    if message[0] is not None:
        raise UserError(message[0])
    return result


#: of prctl(2): a signal at the end of the parent
PR_SET_PDEATHSIG = 1
#: what a launcher leaves in the environment of its processes
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted; a second SIGINT ends the program at
    once. A signal that the caller ignores, as nohup does SIGHUP, stays ignored.

    Several processes confer over a group of their own on the CPU, so that no accelerator waits.
    """

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, accelerator: Accelerator) -> None:
        self.signum, self.group = 0, None
        if accelerator.num_processes > 1:
            self.group = torch.distributed.new_group(backend="gloo")

    def __enter__(self) -> Self:
        caught = (signum for signum in self.caught if signal.getsignal(signum) != signal.SIG_IGN)
        self.previous = {signum: signal.signal(signum, self._note) for signum in caught}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum == signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum

    def check(self) -> None:
        """Raise ``Interrupted`` on all processes, which all call it, if one is asked to stop."""
        signum = self.signum
        if self.group is not None:
            flag = torch.tensor([signum])
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, self.group)
            signum = int(flag)
        if signum:
            raise Interrupted(signum)


def stop_with_launcher() -> None:
    """Ask that a process of torchrun or ``accelerate launch`` is sent SIGTERM when the launcher
    is killed: nobody is left who would end it."""
    if sys.platform == "linux" and any(name in os.environ for name in LAUNCHED):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
