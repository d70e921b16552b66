"""The exceptions for a user's mistake.

A script turns them into one sentence on stderr and exit code 2. Every other exception is a bug and
ends in a traceback.
"""

import signal
from pathlib import Path


class UserError(ValueError):
    """A mistake of the user's: its message says what is wrong and what to do, in one sentence on
    one line, whatever the names in it hold."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class NumericalError(UserError, RuntimeError):
    """A computation that does not end, or gives values that are not finite, at its settings."""


class Interrupted(Exception):
    """A signal ends a run, on all its processes at once; ``saved`` is then its checkpoint."""

    saved: Path | None = None

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
