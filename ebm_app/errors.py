"""The one exception for a user's mistake.

A script turns it into one sentence on stderr and exit code 2. Every other exception is a bug and
ends in a traceback.
"""

from collections.abc import Iterable


class UserError(ValueError):
    """A mistake of the user's: its message says what is wrong and what to do, in one sentence."""


def choose(kind: str, name: str, options: Iterable[str]) -> str:
    """Return ``name`` if it is one of ``options``.

    Raises:
        UserError: otherwise; the message lists the valid names.
    """
    names = sorted(options)
    if name not in names:
        raise UserError(f"unknown {kind} '{name}': choose one of {', '.join(names)}")
    return name
