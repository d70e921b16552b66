"""The layers of the package: a module imports from lower layers only, and nothing in a circle."""

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "ebm_app"
MAX_LINES = 300
SCRIPT_FOLDERS = ("train", "sample", "evaluate", "ui", "tools")

#: Floor of every module and folder of the package; a folder is one unit, whose modules may use
#: each other. A unit imports from lower floors only.
LAYERS = {
    "io": 1,
    "numerics": 2,
    "paths": 3,
    "data": 3,
    "models": 4,
    "spaces": 4,
    "likelihood": 5,
    "objectives": 5,
    "sampling": 6,
    "image_models": 7,
    "evaluation": 8,
    "training": 9,
    "tabular": 3,
    "ratios": 11,
    "": 12,  # the package's own __init__, which gathers what a user imports
    "web": 13,
}


def source_files(root):
    """Every Python file of the tree: those at the top, and those of its folders of code."""
    folders = (root / name for name in (PACKAGE, "tests", *SCRIPT_FOLDERS))
    return [*root.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]


def module_name(path, package):
    """(dotted name below the package, "" for its own __init__; whether it is a folder's)."""
    parts = path.relative_to(package).with_suffix("").parts
    is_folder = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_folder else parts), is_folder


def imported_names(node, package_parts):
    """Absolute dotted names that an import statement may refer to, the longest possible ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package_parts[: len(package_parts) - node.level + 1] if node.level else []
        prefix = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{prefix}.{alias.name}" for alias in node.names]
    return []


def import_graph(package):
    """Every module of a package folder and the modules of it that it imports, anywhere in its
    text: dict of dotted names below the package."""
    files = {module_name(path, package): path for path in package.rglob("*.py")}
    modules = {name for name, _ in files}
    graph = {}
    for (name, is_folder), path in files.items():
        own = [package.name, *name.split(".")] if name else [package.name]
        parts = own if is_folder else own[:-1]
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in imported_names(node, parts):
                first, *rest = target.split(".")
                if first != package.name:
                    continue
                # the longest beginning of the name that is a module; the rest is inside it
                ends = range(len(rest), -1, -1)
                graph[name].add(next(m for e in ends if (m := ".".join(rest[:e])) in modules))
        if is_folder:  # `from package import module` in a folder's __init__ may name itself
            graph[name].discard(name)
    return graph


def violations(graph, layers):
    """What is wrong with a graph of imports, in words."""
    found = []
    units = {name: name.split(".")[0] for name in graph}
    for name in sorted(set(units.values()) - set(layers)):
        found.append(f"{name} has no layer")
    for name in sorted(set(layers) - set(units.values())):
        found.append(f"{name} has a layer but does not exist")
    for name, targets in sorted(graph.items()):
        for target in sorted(targets):
            low, high = layers.get(units[target]), layers.get(units[name])
            if units[name] == units[target] or low is None or high is None:
                continue
            if low >= high:
                found.append(f"{name} [{high}] imports {target or '__init__'} [{low}]")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"imports in a circle: {' <- '.join(error.args[1])}")
    return found


def test_every_module_imports_from_lower_layers_only():
    assert violations(import_graph(ROOT / PACKAGE), LAYERS) == []


GOOD = {
    "__init__.py": "from pkg.top import f",
    "low.py": "import math\nfrom collections import deque",
    "folder/__init__.py": "from pkg.folder.a import x\nfrom . import b",
    "folder/a.py": "from pkg.low import y",
    "folder/b.py": "from .a import x\nfrom ..low import y",
    "top.py": "import pkg.folder.b\nfrom pkg import low",
}
GOOD_LAYERS = {"low": 0, "folder": 1, "top": 8, "": 9}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"new.py": ""}, "new has no layer"),
        ({"top.py": None}, "top has a layer but does not exist"),
        ({"low.py": "import pkg.top"}, "low [0] imports top [8]"),
        ({"low.py": "def f():\n    from pkg.folder.a import x"}, "low [0] imports folder.a [1]"),
        ({"low.py": "from . import folder"}, "low [0] imports folder [1]"),
        ({"folder/a.py": "from ..top import g"}, "folder.a [1] imports top [8]"),
        ({"folder/a.py": "from pkg import f"}, "folder.a [1] imports __init__ [9]"),
        ({"low.py": "import pkg.top"}, "imports in a circle: "),
        ({"folder/a.py": "from . import b"}, "imports in a circle: folder."),
    ],
)
def test_the_check_sees_each_kind_of_violation(tmp_path, changes, message):
    for name, text in {**GOOD, **changes}.items():
        if text is not None:
            path = tmp_path / "pkg" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    found = violations(import_graph(tmp_path / "pkg"), GOOD_LAYERS)
    if message is None:
        assert found == []
    else:
        assert any(line.startswith(message) for line in found), found


def test_only_the_package_can_be_imported():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {PACKAGE}
    assert not list(ROOT.glob("*.py"))
    for name in (*SCRIPT_FOLDERS, "tests"):
        assert not list((ROOT / name).rglob("__init__.py"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == [f"{PACKAGE}*"]


def test_the_package_uses_neither_scripts_nor_tests():
    outside = {*SCRIPT_FOLDERS, "tests", "conftest"}
    for path in (ROOT / PACKAGE).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            firsts = {name.split(".")[0] for name in imported_names(node, [PACKAGE])}
            assert not firsts & outside, path


def test_no_file_is_long():
    counts = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files(ROOT)
    }
    assert len(counts) > len(LAYERS)
    assert {str(path): n for path, n in counts.items() if n > MAX_LINES} == {}
