"""Signals as a request to save and stop, agreed on by all processes."""

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Self

import torch
from accelerate import Accelerator

from ebm_app.utils.errors import Interrupted

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
