"""README and docs/: every link leads somewhere, every command can be parsed, the short snippets
and the README's commands run."""

import re
import sys

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

from ebm_app.cli.command_line import parse
from ebm_app.data.images import DATASETS
from ebm_app.likelihood import ESTIMATORS
from ebm_app.nets.unet import NETS
from ebm_app.objectives.regression import OBJECTIVES
from ebm_app.paths import PATHS
from ebm_app.spaces import SPACES

README = ROOT / "README.md"
SNIPPETS = {
    page.stem: found
    for page in PAGES
    if (found := [block for block in blocks(page, "python") if ADDRESS not in block])
}
#: pages whose snippets take more than five seconds, as they learn from rows
LONG = {"README": "slow", "ratios": "slow", "sampling": "process", "likelihood": "process"}
KINDS = (PATHS, NETS, OBJECTIVES, SPACES, DATASETS, ESTIMATORS)
#: what makes the training of the README short
STEPS = "max_train_steps=2000"
TINY_STEPS = (
    "max_train_steps=2, train_batch_size=4, block_out_channels=(8,), num_preview_images=0, "
    "validation_images=4, lr_warmup_steps=0"
)
COMMANDS = {
    " ".join(words): script_of(words)
    for page in PAGES
    for words in [*block_commands(page), *inline_commands(page)]
    if words[0] != "make"
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_are_there(page):
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_every_target_of_make_is_there():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    named = {name for page in PAGES for name in make_targets(page)}
    assert named >= {"demo", "test", "docs"}
    assert named - targets == set()


def test_the_reference_covers_the_package():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    shown = set(re.findall(r"^::: ebm_app\.(\w+)", "\n".join(pages), re.MULTILINE))
    there = {path.stem for path in (ROOT / "ebm_app").iterdir() if path.suffix in ("", ".py")}
    assert shown == there - {"__init__", "__pycache__", "web", "cli"}


class Parsed(Exception):
    """A command line was understood."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_parsed(command, script, monkeypatch, capsys):
    def parse_and_stop(*args):
        parse(*args)
        raise Parsed

    name, flags = COMMANDS[command]
    module = script(name)
    monkeypatch.setattr(sys.modules[module.main.__module__], "parse", parse_and_stop)
    try:
        with pytest.raises(Parsed):
            module.main(flags)
    except SystemExit:
        pytest.fail(capsys.readouterr().err)


@pytest.mark.parametrize("page", SNIPPETS)
def test_snippets_of_a_page_are_python(page):
    """And the names that they import from the package exist."""
    for snippet in SNIPPETS[page]:
        lines = snippet.splitlines()
        compile(snippet, page, "exec")
        exec("\n".join(line for line in lines if line.startswith(("import ", "from "))), {})


@pytest.fixture
def kinds():
    """Restore the dicts to which an example adds an entry."""
    before = [dict(kind) for kind in KINDS]
    yield
    for kind, entries in zip(KINDS, before, strict=True):
        kind.clear()
        kind.update(entries)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=[getattr(pytest.mark, LONG[name])] if name in LONG else [])
        for name in SNIPPETS
    ],
)
def test_snippets_of_a_page_run(page, kinds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in SNIPPETS[page]:
        exec(snippet.replace(STEPS, TINY_STEPS), names)
