"""How a script starts and ends."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from ebm_app.utils.errors import Interrupted, UserError

#: packages that not every installation has, by the extra that brings them
EXTRAS = {"datasets": "data", "gradio": "ui", "matplotlib": "plots", "pandas": "plots"}
Main = Callable[[Sequence[str] | None], dict[str, Any] | None]


class Terminal:
    """A stream to a reader who may leave, or a disk that may be full: what can no longer be
    written is dropped, and ends no run. A stream that was closed is None."""

    def __init__(self, stream: TextIO | None) -> None:
        self.is_lost = stream is None
        self.stream = open(os.devnull, "w") if stream is None else stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError:
            self._lose()
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        self.is_lost = True
        # what waits in its buffers goes nowhere, now and when the program ends
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def lasting_terminal() -> Iterator[Terminal]:
    """Within it, neither stdout, which it gives, nor stderr ends a run by being lost."""
    stdout = Terminal(sys.stdout)
    with redirect_stdout(stdout), redirect_stderr(Terminal(sys.stderr)):
        yield stdout
        stdout.flush()
        sys.stderr.flush()


def run_script(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run a script's ``main`` and return its exit code.

    The metrics it returns are printed as one JSON object on the last line. A UserError becomes one
    sentence on stderr and exit code 2, as does a stdout that did not take the metrics; a run that
    a signal ended gives 128 + its number.
    """
    with lasting_terminal() as stdout:
        code = _run(main, argv)
        stdout.flush()
        if code == 0 and stdout.is_lost:
            print("error: stdout took no metrics: read them in the record", file=sys.stderr)
            return 2
        return code


def _run(main: Main, argv: Sequence[str] | None) -> int:
    try:
        metrics = main(argv)
    except (UserError, ImportError, OSError, MemoryError, RuntimeError) as error:
        text = explained(error)
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(
            f"stopped by {stop}: saved {stop.saved}; go on with --resume_from_checkpoint latest",
            file=sys.stderr,
        )
        return 128 + stop.signum
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if metrics is not None:
        print(json.dumps(metrics), flush=True)
    return 0


def explained(error: Exception) -> str | None:
    """What a user can do about an exception; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        return (
            f"this needs {name}: pip install 'ebm_app[{EXTRAS[name]}]'" if name in EXTRAS else None
        )
    if isinstance(error, OSError) and error.errno is not None:
        place = "a file" if error.filename is None else " ".join(str(error.filename).splitlines())
        return f"{place} cannot be used ({error.strerror}): mend that"
    # numpy, torch on a device, and torch on the CPU
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or "allocate memory" in str(error):
        return "the memory is full: give smaller batches, or fewer images, draws or steps"
    return None
