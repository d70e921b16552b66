"""Processes and devices of a run: setup, sharding of work, and stop signals."""

import ctypes
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin, broadcast_object_list
from torch import Tensor

from ebm_app.utils.errors import Interrupted, UserError, user_message
from ebm_app.utils.registry import choose

T = TypeVar("T")
Wrap = Callable[[Sequence[Tensor]], Iterable[Tensor]]
#: Environment variables of accelerate that shard the weights over processes
SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
#: Option of prctl(2): signal sent to a process when its parent dies
PR_SET_PDEATHSIG = 1
#: Environment variables set by torchrun and accelerate launch
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
#: Measured on a core with AVX2, for 32 images of 28x28: 15.5 s per step, and 2.1 s in float32
EMULATED = (
    "This processor emulates bfloat16, which makes a training step about 7 times slower. Use "
    "mixed_precision no."
)


def resolve_device(name: str) -> str:
    """Resolve the device "auto", "cpu" or "cuda" to "cpu" or "cuda"."""
    if choose("device", name, ("auto", "cpu", "cuda")) == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("No CUDA device is available. Use device cpu.")
    return name


def has_bfloat16(device: str) -> bool:
    """Whether "cpu" or "cuda" has bfloat16 instructions (on CPUs: AVX-512-BF16 or AMX). Other CPUs
    emulate them."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def resolve_precision(name: str, device: str) -> str:
    """Resolve a precision, "auto", "no", "bf16" or "fp16", on the device "cpu" or "cuda".

    "auto" is the mixed precision of ``accelerate launch``, if set. Otherwise it is "bf16" if the
    device supports it, and "no" (float32) if not. Warns if bf16 is emulated.
    """
    if name == "auto":
        configured = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
        choose("ACCELERATE_MIXED_PRECISION", configured, ("no", "bf16", "fp16"))
        name = configured if configured != "no" else "bf16" if has_bfloat16(device) else "no"
    if name == "bf16" and not has_bfloat16(device):
        print(f"warning: {EMULATED}", file=sys.stderr)
    return name


def make_accelerator(
    mixed_precision: str | None = None, device: str = "auto", **options: Any
) -> Accelerator:
    """Create an Accelerator for the processes of torchrun or ``accelerate launch``.

    Args:
        mixed_precision: as for ``resolve_precision``; None without training.

    Raises:
        UserError: if accelerate's configuration shards the weights over processes.
    """
    for name in SHARDING:
        if os.environ.get(name, "").lower() == "true":
            raise UserError(f"{name} of accelerate is not supported. Use --multi_gpu instead.")
    device = resolve_device(device)
    if device == "cpu":
        from joblib import cpu_count  # of scikit-learn; slow to import

        warn_of_missing_processes()
        # torch counts all cores of the machine, also in a container with fewer
        torch.set_num_threads(min(torch.get_num_threads(), cpu_count()))
    if mixed_precision is not None:
        mixed_precision = resolve_precision(mixed_precision, device)
        # otherwise the precision of the first Accelerator of a process is kept
        AcceleratorState._reset_state()
        if device == "cuda":  # TF32 for products, as for convolutions
            torch.set_float32_matmul_precision("high")
    return Accelerator(
        cpu=device == "cpu",
        mixed_precision=mixed_precision,
        # the training loop accumulates gradients itself
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        **options,
    )


@cache
def warn_of_missing_processes() -> None:
    """Warn, once, if ``accelerate launch --num_processes N`` started one process, as it does on
    CPUs."""
    launcher = Path(f"/proc/{os.getppid()}/cmdline")
    words = launcher.read_text(errors="replace").split("\0") if launcher.exists() else []
    if "launch" not in words or "WORLD_SIZE" in os.environ:
        return
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--num_processes", "--num-processes", type=int, default=1)
    expected = parser.parse_known_args(words)[0].num_processes
    if expected > 1:
        print(
            f"accelerate launch started 1 process instead of {expected}, because it starts one on "
            f"CPUs. Use torchrun --nproc_per_node {expected}.",
            file=sys.stderr,
        )


def describe_devices(accelerator: Accelerator) -> str:
    """Describe the devices of a run, such as "8 x NVIDIA H100, compiled by inductor"."""
    device, backend = accelerator.device, accelerator.state.dynamo_plugin.backend.value.lower()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    compiled = "" if backend == "no" else f", compiled by {backend}"
    return f"{accelerator.num_processes} x {name}{compiled}"


def shut_down(accelerator: Accelerator) -> None:
    """End a run: release the prepared objects, then close the trackers and the process group.

    The order matters, because gloo may abort a process whose objects outlive the group.
    """
    accelerator.free_memory()
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
    """Compute a table (num, columns) float64, with rows sharded over processes.

    Process r of W computes rows r, r + W, .... All processes return the whole table, which does
    not depend on the number of processes.

    Args:
        function: indices (b,) -> rows (b, columns).
        wrap: iterates over the batches of a process, for example with a progress bar.
    """
    own = torch.arange(accelerator.process_index, num, accelerator.num_processes)
    table = torch.zeros(num, columns, dtype=torch.float64)
    longest = -(-num // accelerator.num_processes)
    # all processes have the same number of batches; the last may be empty
    batches = [own[begin : begin + batch_size] for begin in range(0, longest, batch_size)]
    for rows in wrap(batches):
        if len(rows):
            table[rows] = function(rows).double().cpu()
    return accelerator.reduce(table.to(accelerator.device), "sum").cpu()


def on_main(accelerator: Accelerator, action: Callable[[], T]) -> T | None:
    """Run ``action`` on the main process; return its result there, and None elsewhere.

    Raises:
        UserError: on all processes, if ``action`` raises a UserError or an OSError.
    """
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


class StopSignals:
    """Context manager that records SIGINT, SIGTERM and SIGHUP, so that a run can save and stop.

    A second SIGINT raises KeyboardInterrupt immediately. Ignored signals, such as SIGHUP under
    nohup, stay ignored. Processes synchronise through a gloo group on the CPU, which does not
    block the GPU.
    """

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, accelerator: Accelerator) -> None:
        self.signum, self.group = 0, None
        if accelerator.num_processes > 1:
            self.group = torch.distributed.new_group(backend="gloo")

    def __enter__(self) -> Self:
        caught = (signum for signum in self.caught if signal.getsignal(signum) != signal.SIG_IGN)
        self.previous = {signum: signal.signal(signum, self._record) for signum in caught}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)

    def _record(self, signum: int, frame: FrameType | None) -> None:
        if self.signum == signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum

    def check(self) -> None:
        """Raise ``Interrupted`` on all processes if any of them received a signal. All processes
        must call it."""
        signum = self.signum
        if self.group is not None:
            flag = torch.tensor([signum])
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, self.group)
            signum = int(flag)
        if signum:
            raise Interrupted(signum)


def start_of_process() -> float:
    """Return the start of this process, a value of ``time.perf_counter``."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.perf_counter() - age


def stop_with_launcher() -> None:
    """Send SIGTERM to this process if its launcher, such as torchrun, is killed."""
    if sys.platform == "linux" and any(name in os.environ for name in LAUNCHED):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
