"""Fields of a configuration that say what they are: a command line is made from them."""

from dataclasses import field
from typing import Any


def setting(text: str, default: Any, rare: bool = False) -> Any:
    """A dataclass field with a help text; a ``rare`` one stands among the advanced flags.

    >>> from dataclasses import dataclass, fields
    >>> @dataclass
    ... class Noise:
    ...     seed: int = setting("seed of all noise", 0)
    >>> fields(Noise)[0].metadata["help"]
    'seed of all noise'
    """
    return field(default=default, metadata={"help": text, "rare": rare})
