"""Every script and the dataclass of its flags."""

import dataclasses
import sys
from contextlib import suppress
from unittest.mock import patch

from conftest import ROOT, load_script

#: Paths of the scripts that have a command line
SCRIPTS = [
    str(path.relative_to(ROOT))
    for folder in ("train", "sample", "evaluate", "ui")
    for path in sorted((ROOT / folder).glob("*.py"))
]


def arguments_of(path: str) -> type:
    """Return the dataclass that the ``main`` of a script parses first."""
    main = load_script(path).main
    with patch.object(
        sys.modules[main.__module__], "parse", side_effect=InterruptedError
    ) as parse:
        with suppress(InterruptedError):
            main([])
    return parse.call_args.args[0]


def required(kind: type) -> dict[str, str | tuple[str]]:
    """Return a value for every field of ``kind`` that has no default."""
    absent = dataclasses.MISSING
    return {
        item.name: ("digits",) if "tuple[" in str(item.type) else "digits"
        for item in dataclasses.fields(kind)
        if item.default is absent and item.default_factory is absent
    }
