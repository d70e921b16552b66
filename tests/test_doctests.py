"""Examples in docstrings run."""

import doctest
from importlib import import_module

import pytest
from conftest import ROOT

import ebm_app

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "ebm_app").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
#: Modules whose examples train for seconds.
LONG = {f"ebm_app.ratios.{name}" for name in ("ctsm", "information", "two_samples")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.process] * (name in LONG)) for name in MODULES]
)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(name), optionflags=FLAGS)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", [n for n in ebm_app.__all__ if callable(getattr(ebm_app, n))])
def test_public_name_has_an_example(name):
    tests = doctest.DocTestFinder().find(getattr(ebm_app, name))
    assert any(test.examples for test in tests)
