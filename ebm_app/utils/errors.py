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


#: Optional packages -> the extra that installs them
EXTRAS = {"datasets": "data", "gradio": "ui", "matplotlib": "plots", "pandas": "plots"}


def user_message(error: Exception) -> str | None:
    """Return one sentence that says how to fix an exception, or None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(name)
        return f"{name} is not installed. Run pip install 'ebm_app[{extra}]'." if extra else None
    if isinstance(error, OSError) and error.errno is not None:
        place = "a file" if error.filename is None else " ".join(str(error.filename).splitlines())
        return f"Cannot access {place}: {error.strerror}."
    # memory errors of numpy, of torch on a GPU, and of torch on the CPU
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or "allocate memory" in str(error):
        return "Out of memory. Use a smaller batch, or fewer images, draws or steps."
    return None
