"""Modules import from lower layers only; no file is long."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "ebm_app"
SCRIPTS = ("train", "sample", "evaluate", "ui")
MAX_LINES = 500

#: From the top. A unit is a folder or a module of the package; "ebm_app" is its __init__. Modules
#: of a unit may import each other.
LAYERS = (
    ("train", "sample", "evaluate", "ui"),
    ("web", "ebm_app"),
    ("training", "anomaly", "ratios"),
    ("evaluation",),
    ("ebm", "flow"),
    ("likelihood", "objectives"),
    ("sampling",),
    ("nets",),
    ("spaces",),
    ("pretrained",),
    ("config", "command_line"),
    ("paths", "data"),
    ("utils",),
)
HEIGHT = {unit: -index for index, row in enumerate(LAYERS) for unit in row}


FILES = [path for top in (PACKAGE, *SCRIPTS) for path in (ROOT / top).rglob("*.py")]
UNITS = {path.stem for path in (ROOT / PACKAGE).iterdir()} - {"__init__"}


def unit_of(parts):
    if parts[0] == PACKAGE:
        return parts[1] if len(parts) > 1 and parts[1] in UNITS else PACKAGE
    return parts[0]


def units_imported(path):
    """Yield the units of the names that a file imports."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (unit_of(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from (unit_of((*base, alias.name)) for alias in node.names)


def test_modules_import_from_lower_layers_only():
    importers = {path: unit_of(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    assert set(importers.values()) == set(HEIGHT)
    wrong = [
        f"{path} imports {unit}"
        for path, importer in importers.items()
        for unit in {*units_imported(path)} & set(HEIGHT) - {importer}
        if HEIGHT[unit] >= HEIGHT[importer]
    ]
    assert wrong == []


def test_files_have_at_most_500_lines():
    files = [path for top in (PACKAGE, *SCRIPTS, "tests") for path in (ROOT / top).rglob("*.py")]
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
