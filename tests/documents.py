"""What the README and the pages in docs/ hold: commands, snippets of Python, links."""

import re
import shlex
from pathlib import Path

from conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: where the pages have the application
ADDRESS = "http://127.0.0.1:7860"
PROGRAMS = ("python", "accelerate", "torchrun")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language in a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def shell_scripts() -> list[str]:
    """Blocks that are one script with variables, and not a command a line."""
    return [block for page in PAGES for block in blocks(page, "bash") if "curl" in block]


def block_commands(page: Path) -> list[list[str]]:
    """The commands in a page's blocks, a line each, as their words."""
    found = [block for block in blocks(page, "bash") if "curl" not in block]
    commands = [shlex.split(line) for block in found for line in block.strip().splitlines()]
    return [words for words in commands if words[0] != "docker"]


def inline_commands(page: Path) -> list[list[str]]:
    """The commands within a page's text, as their words; MODEL and TASK stand for a name."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = [shlex.split(code) for code in re.findall(r"`([^`]+)`", text)]
    names = {"MODEL": "digits", "TASK": "normal_1x1"}
    return [
        [names.get(word, word) for word in words if word != "..."]
        for words in found
        if words and words[0] in PROGRAMS and any(word.endswith(".py") for word in words)
    ]


def script_of(words: list[str]) -> tuple[str, list[str]]:
    """The script that a command runs, and its flags; what launches it is left out."""
    index = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[index], words[index + 1 :]


def make_targets(page: Path) -> set[str]:
    """The targets of make that a page names."""
    text = page.read_text(encoding="utf-8")
    return set(re.findall(r"(?:^|`)make ([a-z-]+)(?=`|$)", text, re.MULTILINE))


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures that lie in the tree, without anchors."""
    targets = re.findall(r"\]\((.*?)\)", page.read_text(encoding="utf-8"))
    found = (target.split("#")[0] for target in targets if "://" not in target)
    return [target for target in found if target]
