"""The record of a run: what was run, with what, and what came out."""

import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ebm_app.io.records import write_json

PACKAGES = ("ebm_app", "torch", "torchvision", "diffusers", "accelerate", "numpy")


class RunRecord:
    """``<name>.json`` of a run; time runs from its making."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.begin = path, time.time()
        self.data = {
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "settings": settings,
            "versions": {"python": platform.python_version()}
            | {package: version(package) for package in PACKAGES},
            "git_revision": git_revision(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin)),
        }

    def write(self, metrics: dict[str, Any] | None) -> None:
        """Write the record with its metrics under the key "figures", None while there are none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        seconds = round(time.time() - self.begin, 2)
        write_json(self.path, {**self.data, "seconds": seconds, "figures": metrics})


def git_revision() -> str | None:
    """The revision of the package's own checkout, or None where it is installed elsewhere."""
    tree = Path(__file__).resolve().parents[2]
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40"]
    if not (tree / ".git").exists() or shutil.which("git") is None:
        return None
    answer = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    return answer.stdout.strip() or None
