"""Ctrl-C and SIGTERM as a request to save and stop, agreed on by all processes."""

import signal
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import torch
from accelerate import Accelerator


class Interrupted(Exception):
    """A signal ended a run, after its checkpoint was saved."""

    def __init__(self, signum: int, checkpoint: Path) -> None:
        super().__init__(f"{signal.Signals(signum).name}: saved {checkpoint}")
        self.signum, self.checkpoint = signum, checkpoint


class StopSignals:
    """While entered, SIGINT and SIGTERM are noted; a second SIGINT ends the program at once."""

    caught = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator, self.signum = accelerator, 0

    def __enter__(self) -> Self:
        self.previous = {signum: signal.signal(signum, self._note) for signum in self.caught}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum == signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum

    def asked(self, meeting: bool) -> int:
        """The signal that asks to stop, or 0.

        Several processes confer only at a ``meeting``, a step on which all of them call with True.
        """
        if self.accelerator.num_processes == 1:
            return self.signum
        if not meeting:
            return 0
        flag = torch.tensor([self.signum], device=self.accelerator.device)
        return int(self.accelerator.gather(flag).max())
