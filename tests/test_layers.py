"""Modules import from lower layers only; no file is long."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "ebm_app"
SCRIPTS = ("train", "sample", "evaluate", "ui")
MAX_LINES = 300

#: From the top. A unit is a folder or a module of the package; "ebm_app" is its __init__. Modules
#: of a unit may import each other.
LAYERS = (
    ("train", "sample", "evaluate", "ui"),
    ("cli",),
    ("web", "ebm_app"),
    ("training", "anomaly", "ratios"),
    ("evaluation",),
    ("completion", "compose"),
    ("ebm", "flow"),
    ("annealing", "model"),
    ("sampling", "likelihood", "objectives"),
    ("nets", "spaces"),
    ("pretrained",),
    ("folders",),
    ("config",),
    ("paths", "data"),
    ("utils",),
)
HEIGHT = {unit: -index for index, row in enumerate(LAYERS) for unit in row}


def name_of(path):
    """Return the dotted name of a module as a tuple; a package's without ``__init__``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported_names(path, name):
    """Yield the longest dotted names that a file may import, as tuples."""
    package = name if path.name == "__init__.py" else name[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from ((*base, alias.name) for alias in node.names)


def import_graph():
    """Return each module's imports from the project: name -> set of names."""
    files = {
        name_of(path): path for top in (PACKAGE, *SCRIPTS) for path in (ROOT / top).rglob("*.py")
    }
    graph = {name: set() for name in files}
    for name, path in files.items():
        for target in imported_names(path, name):
            if name[0] == "evaluate" and target[0] == "studies":
                target = ("evaluate", *target)  # evaluate/ is on the path of its scripts
            prefixes = (target[:end] for end in range(len(target), 0, -1))
            graph[name] |= {next((p for p in prefixes if p in files), name)} - {name}
    return graph


def unit_of(name):
    return name[1] if name[0] == PACKAGE and len(name) > 1 else name[0]


def test_layers_list_every_unit():
    assert {unit_of(name) for name in import_graph()} == set(HEIGHT)


def test_modules_import_from_lower_layers_only():
    wrong = [
        f"{'.'.join(importer)} imports {'.'.join(imported)}"
        for importer, targets in import_graph().items()
        for imported in targets
        if unit_of(importer) != unit_of(imported)
        and HEIGHT[unit_of(imported)] >= HEIGHT[unit_of(importer)]
    ]
    assert wrong == []


def test_only_the_package_is_installed():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {PACKAGE}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == [f"{PACKAGE}*"]


def test_no_file_is_long():
    files = [path for top in (PACKAGE, *SCRIPTS, "tests") for path in (ROOT / top).rglob("*.py")]
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
