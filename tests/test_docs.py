"""README, docs/ and docstrings: links exist, commands parse, snippets run, figures are those of
the records."""

import doctest
import json
import re
import shlex
import sys
from importlib import import_module

import pytest
from conftest import ROOT
from documents import (
    ADDRESS,
    PAGES,
    block_commands,
    blocks,
    inline_commands,
    links,
    make_targets,
    script_of,
)

import ebm_app
from ebm_app.command_line import parse
from ebm_app.data.datasets import DATASETS
from ebm_app.likelihood import ESTIMATORS
from ebm_app.nets.unet import NETS
from ebm_app.objectives.regression import OBJECTIVES
from ebm_app.paths import PATHS
from ebm_app.spaces import SPACES

#: Marks of pages whose snippets take minutes
MARKS = {"ratios": pytest.mark.slow}
REGISTRIES = (PATHS, NETS, OBJECTIVES, SPACES, DATASETS, ESTIMATORS)
COMMANDS = {
    " ".join(words): script_of(words)
    for page in PAGES
    for words in [*block_commands(page), *inline_commands(page)]
    if words[0] != "make"
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_images_exist(page):
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_match_their_records(page, script):
    text = page.read_text(encoding="utf-8")
    assert script("tools/results.py").render(text) == text, "run python tools/results.py write"


def test_every_record_is_documented():
    records = [json.loads(path.read_text()) for path in (ROOT / "docs/results").glob("*.json")]
    recorded = {tuple(shlex.split(command)) for record in records for command in record}
    assert recorded <= {tuple(words) for page in PAGES for words in block_commands(page)}


def test_records_are_of_the_bundled_weights(script):
    results, outdated = script("tools/results.py"), []
    for table in results.TABLES:
        for command, record in results.records(table).items():
            if "source" not in record and record["weights"] != results.weights_of(command):
                outdated.append(command)
    assert not outdated, "run python tools/results.py run TABLE --only MODEL"


def test_every_point_of_the_contract_names_its_test():
    points = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8").split("\n## ")[1:-1]
    named = [re.findall(r"^Test: `(test_\w+)`\.$", point, re.MULTILINE) for point in points]
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) == 11 and all(len(names) == 1 for names in named)
    assert [name for (name,) in named if f"def {name}(" not in tests] == []


def test_documented_make_targets_exist():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    assert {name for page in PAGES for name in make_targets(page)} - targets == set()


def test_api_reference_covers_the_package():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    shown = set(re.findall(r"^::: ebm_app\.(\w+)", "\n".join(pages), re.MULTILINE))
    modules = {path.stem for path in (ROOT / "ebm_app").iterdir() if path.suffix in ("", ".py")}
    assert shown == modules - {"__init__", "__pycache__", "web", "command_line"}


class Parsed(Exception):
    """Raised after a command line was parsed."""


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_command_parses(command, script, monkeypatch, capsys):
    def parse_and_stop(*args):
        parse(*args)
        raise Parsed

    name, arguments = COMMANDS[command]
    main = script(name).main
    module = sys.modules[main.__module__]
    monkeypatch.setattr(module, "parse", parse_and_stop)
    if hasattr(module, "peek"):  # the files that the flags name do not exist
        monkeypatch.setattr(module, "peek", lambda *args: {})
    try:
        with pytest.raises(Parsed):
            main(arguments)
    except SystemExit:
        pytest.fail(capsys.readouterr().err)


@pytest.fixture
def registries():
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)


SNIPPETS = {page.stem: [x for x in blocks(page, "python") if ADDRESS not in x] for page in PAGES}
PARAMS = [pytest.param(x, id=k, marks=MARKS.get(k, ())) for k, x in SNIPPETS.items() if x]


@pytest.mark.parametrize("snippets", PARAMS)
def test_snippets_run(snippets, registries, tmp_path, monkeypatch):
    train, short = ebm_app.train, {"block_out_channels": (8, 8), "norm_num_groups": 4}
    short |= {"max_train_steps": 2, "train_batch_size": 4, "num_preview_images": 0}
    short |= {"validation_images": 4, "validation_repeats": 1}
    monkeypatch.setattr(ebm_app, "train", lambda *args, **kw: train(*args, **(kw | short)))
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in snippets:
        exec(snippet, names)


FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "ebm_app").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(name), optionflags=FLAGS)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", [n for n in ebm_app.__all__ if callable(getattr(ebm_app, n))])
def test_public_name_has_an_example(name):
    tests = doctest.DocTestFinder().find(getattr(ebm_app, name))
    assert any(test.examples for test in tests)
