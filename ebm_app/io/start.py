"""How a script starts and ends."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ebm_app.io.errors import Interrupted, NotSaved, UserError

Main = Callable[[Sequence[str] | None], dict[str, Any] | None]


def run_script(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run a script's ``main`` and return its exit code.

    The metrics it returns are printed as one JSON object on the last line. A UserError becomes one
    sentence on stderr and exit code 2; a run that a signal ended gives 128 + its number.
    """
    try:
        metrics = main(argv)
    except UserError as error:
        if isinstance(error, NotSaved):
            print(json.dumps(error.metrics), flush=True)
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_memory_full(error):
            raise
        remedy = "give smaller batches, or fewer images, draws or steps"
        print(f"error: the memory is full: {remedy}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"stopped by {stop}; go on with --resume_from_checkpoint latest", file=sys.stderr)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if metrics is not None:
        print(json.dumps(metrics), flush=True)
    return 0


def is_memory_full(error: BaseException) -> bool:
    """Whether an exception says that numpy, torch or a device could not get memory."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "allocate memory" in str(error)
