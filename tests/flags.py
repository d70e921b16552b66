"""Every script and the flags that it declares."""

import dataclasses

from conftest import ROOT, load_script

#: the scripts with a command line, by their paths
SCRIPTS = [
    str(path.relative_to(ROOT))
    for folder in ("train", "sample", "evaluate", "ui")
    for path in sorted((ROOT / folder).glob("*.py"))
    if " Arguments" in path.read_text(encoding="utf-8")
]


def arguments_of(path: str) -> type:
    """The configuration that a script's flags make."""
    return load_script(path).Arguments


def required(kind: type) -> dict[str, str | tuple[str]]:
    """Something for every field that must be given."""
    absent = dataclasses.MISSING
    return {
        item.name: ("digits",) if "tuple[" in str(item.type) else "digits"
        for item in dataclasses.fields(kind)
        if item.default is absent and item.default_factory is absent
    }
