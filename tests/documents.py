"""Commands, Python snippets and links of the README and the pages in docs/."""

import re
import shlex
from pathlib import Path

from conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Address of the web app in the documentation.
ADDRESS = "http://127.0.0.1:7860"
#: Values of the placeholders in inline commands.
PLACEHOLDERS = {"MODEL": "digits", "TASK": "normal_1x1", "FOLDER": "runs/folder"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def shell_scripts() -> list[str]:
    """Return the blocks that are one shell script, not one command per line."""
    return [block for page in PAGES for block in blocks(page, "bash") if "curl" in block]


def block_commands(page: Path) -> list[list[str]]:
    """Return the commands of a page's blocks, split into words."""
    lines = [x for block in blocks(page, "bash") if "curl" not in block for x in block.split("\n")]
    return [words for line in lines if (words := shlex.split(line)) and words[0] != "docker"]


def inline_commands(page: Path) -> list[list[str]]:
    """Return the complete commands in a page's text that run a script, split into words."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    commands = [shlex.split(code) for code in re.findall(r"`([^`]+)`", text)]
    return [
        [PLACEHOLDERS.get(word, word) for word in words]
        for words in commands
        if words[:1] == ["python"]
        and any(word.endswith(".py") for word in words)
        and not words[1].startswith("tools/")
    ]


def script_of(words: list[str]) -> tuple[str, list[str]]:
    """Return the script of a command, without its launcher, and the script's arguments."""
    index = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[index], words[index + 1 :]


def make_targets(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    return set(re.findall(r"(?:^|`)make ([a-z-]+)(?=`|$)", text, re.MULTILINE))


def links(page: Path) -> list[str]:
    """Return the local targets of a page's links and images, without anchors."""
    targets = re.findall(r"\]\((.*?)\)", page.read_text(encoding="utf-8"))
    local = (target.split("#")[0] for target in targets if "://" not in target)
    return [target for target in local if target]
