"""README and docs/: every link leads somewhere, and the short snippets run."""

import re

import pytest
from conftest import ROOT
from documents import ADDRESS, PAGES, blocks, links, make_targets

README = ROOT / "README.md"
SNIPPETS = [
    pytest.param(snippet, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, snippet in enumerate(blocks(page, "python"))
    if ADDRESS not in snippet
]


def test_the_readme_is_one_page():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_are_there(page):
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_every_picture_is_shown():
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    assert set((ROOT / "docs").glob("*.png")) <= shown


def test_every_target_of_make_is_there():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    named = {name for page in PAGES for name in make_targets(page)}
    assert named >= {"demo", "test", "docs"}
    assert named - targets == set()


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_run(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
