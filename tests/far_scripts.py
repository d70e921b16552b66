"""Run scripts of the tree on the device of ``far_device``, in a process of its own.

    python tests/far_scripts.py < COMMANDS

COMMANDS is JSON, a list of [fault, script, arguments]. Of each are printed the metrics and how
many numbers were read back, or the device's error. A fault is what is brought in on purpose.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import accelerate
import diffusers.training_utils  # noqa: F401 - what scripts import late
import far_device
import torch
from conftest import load_script

from ebm_app.training.batches import EBMBatches

near_batch = EBMBatches.batch
#: name -> the place and what stands there in place of the right thing
FAULTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "batches stay on the CPU": (
        EBMBatches,
        "batch",
        lambda self, step: tuple(part.cpu() for part in near_batch(self, step)),
    ),
    "noise of the CPU": (
        far_device.AnyGenerator,
        "__new__",
        lambda cls, device="cpu": far_device.NearGenerator(),
    ),
}


def run(fault: str, path: str, arguments: list[str]) -> dict[str, Any]:
    """The metrics of a script and its reads, or the error of the device."""
    script = load_script(path)
    if hasattr(script, "resolve_device"):
        script.resolve_device = lambda name: far_device.FAR
    far_device.reads.clear()
    with contextlib.ExitStack() as stack:
        if fault:
            stack.enter_context(mock.patch.object(*FAULTS[fault]))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(far_device.far_away())
        try:
            metrics = script.main(arguments)
        except far_device.WrongDevice as error:
            return {"error": str(error)}
    return {"metrics": metrics, "reads": sum(far_device.reads.values())}


def main() -> None:
    """Run the commands."""
    torch.set_num_threads(1)
    accelerate.Accelerator.device = property(lambda self: far_device.FAR)
    for command in json.load(sys.stdin):
        print(json.dumps(run(*command)), flush=True)


if __name__ == "__main__":
    main()
