"""The layers of the house: a module imports from lower layers only, nothing in a circle, and the
whole stays small."""

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "ebm_app"
SCRIPTS = ("train", "sample", "evaluate", "ui")
MAX_LINES = 300

#: From the top. A folder is one unit, whose modules may use each other; a unit imports from lower
#: layers only. "ebm_app" itself is the package's own __init__, which gathers what a user imports.
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
    ("nets", "spaces", "tabular"),
    ("pretrained",),
    ("folders",),
    ("config",),
    ("paths", "data"),
    ("utils",),
)


def parts_of(path, root):
    """The dotted name of a file as a tuple, a folder's __init__ by the folder's."""
    parts = path.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported_names(path, parts):
    """Dotted names, as tuples, that the import statements of a file may refer to, the longest
    possible ones."""
    package = parts if path.name == "__init__.py" else parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from ((*base, alias.name) for alias in node.names)


def import_graph(root, folders=(PACKAGE, *SCRIPTS)):
    """Every module below some folders and the modules there that it imports, anywhere in its
    text: dotted names as tuples."""
    files = {
        parts_of(path, root): path for name in folders for path in (root / name).rglob("*.py")
    }
    graph = {}
    for parts, path in files.items():
        graph[parts] = set()
        for target in imported_names(path, parts):
            if parts[0] == "evaluate" and target[0] == "studies":
                target = ("evaluate", *target)  # evaluate/ is on the path of its own scripts
            # the longest beginning of the name that is a module; the rest is inside it
            ends = range(len(target), 0, -1)
            found = next((target[:end] for end in ends if target[:end] in files), parts)
            graph[parts] |= {found} - {parts}
    return graph


def unit_of(parts):
    """The unit of a module: its folder in the package, or its folder of scripts."""
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else parts[0]


def edges(graph):
    """Pairs of modules in different units of which the first imports the second."""
    return [(a, b) for a, found in graph.items() for b in found if unit_of(a) != unit_of(b)]


def violations(graph, layers):
    """What is wrong with a graph of imports, in words."""
    height = {unit: -index for index, row in enumerate(layers) for unit in row}
    units = {unit_of(parts) for parts in graph}
    found = [f"{unit} has no layer" for unit in sorted(units - set(height))]
    found += [f"{unit} has a layer but does not exist" for unit in sorted(set(height) - units)]
    known = [pair for pair in edges(graph) if {unit_of(name) for name in pair} <= set(height)]
    found += [
        f"{'.'.join(a)} imports {'.'.join(b)}"
        for a, b in sorted(known)
        if height[unit_of(b)] >= height[unit_of(a)]
    ]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"imports in a circle: {' <- '.join('.'.join(n) for n in error.args[1])}")
    return found


def test_every_module_imports_from_lower_layers_only():
    assert violations(import_graph(ROOT), LAYERS) == []


def test_only_the_package_can_be_imported():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {PACKAGE}
    assert not list(ROOT.glob("*.py"))
    for name in (*SCRIPTS, "tools", "tests"):
        assert not list((ROOT / name).rglob("__init__.py"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == [f"{PACKAGE}*"]


def test_no_file_is_long():
    folders = (PACKAGE, *SCRIPTS, "tools", "tests")
    files = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert lines
    assert {str(path): n for path, n in lines.items() if n > MAX_LINES} == {}
