"""Exceptions for user errors, and their messages.

Scripts print the message on stderr and exit with code 2. Any other exception is a bug and is
printed with a traceback.
"""

import signal
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

#: Max characters of a value in an error message
MAX_SHOWN = 60
#: Max invalid fields in an error message
MAX_ERRORS = 3


class UserError(ValueError):
    """Error that the user can fix. The one-line message says what is wrong and what to do.

    >>> from ebm_app import EBM, UserError
    >>> try:
    ...     EBM.from_pretrained("digits").log_prob(["a.png"])
    ... except UserError as error:
    ...     print(error)
    Expected a tensor or array (N, 1, 8, 8), got list. Read image files with ebm_app.read_images.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class NumericalError(UserError, RuntimeError):
    """Computation that did not converge, or whose result is not finite."""


class Interrupted(Exception):
    """Signal that stops a run on all its processes.

    Attributes:
        signum: signal number.
        saved: folder of the checkpoint saved by the run.
    """

    saved: Path | None = None

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


#: Messages of torch.distributed about a process that has ended
LOST = ("Connection closed by peer", "Connection reset by peer")
#: Optional package -> extra that installs it
EXTRAS = {"datasets": "hub", "gradio": "ui", "matplotlib": "plots", "pandas": "tables"}
EXTRAS |= {"zuko": "spline"}


def user_message(error: Exception) -> str | None:
    """Return the message that is printed for an exception, or None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(name)
        return f"{name} is not installed. Run pip install 'ebm_app[{extra}]'." if extra else None
    if isinstance(error, OSError) and error.errno is not None:
        place = "a file" if error.filename is None else " ".join(str(error.filename).splitlines())
        return f"Cannot access {place}: {error.strerror}."
    if any(text in str(error) for text in LOST):
        return "Another process of the run has ended. Resume the run from its last checkpoint."
    # memory errors of numpy, torch on a GPU, torch on the CPU, and importing torch
    names = {kind.__name__ for kind in type(error).__mro__}
    texts = ("allocate memory", "failed to map segment")
    if names & {"MemoryError", "OutOfMemoryError"} or any(text in str(error) for text in texts):
        return "Out of memory. Use a smaller batch, or fewer images, draws or steps."
    return None


def describe_errors(error: UserError | ValidationError) -> str:
    """Describe an error in one line; for a ``ValidationError``, the first invalid fields."""
    if isinstance(error, UserError):
        return str(error)
    details = error.errors(include_url=False, include_context=False)
    return "; ".join(_describe(detail) for detail in details[:MAX_ERRORS])


def _describe(detail: ErrorDetails) -> str:
    field = shorten(".".join(map(str, detail["loc"])))
    match detail["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"unknown key {field}"
        case "missing" | "missing_argument":
            return f"key {field} is missing"
        case "value_error":  # raised by a validator of this package
            return f"{field} {detail['msg'].removeprefix('Value error, ')}".strip()
    message = detail["msg"].replace("Input should be", "must be").partition(", unable to")[0]
    return f"{field} {message}, got {shorten(repr(detail['input']))}".strip()


def shorten(value: Any) -> str:
    """Return the text of a value on one line, truncated to ``MAX_SHOWN`` characters.

    >>> shorten("x" * 1000) == "x" * MAX_SHOWN + "..."
    True
    """
    text = " ".join(str(value)[: 4 * MAX_SHOWN].split())
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
