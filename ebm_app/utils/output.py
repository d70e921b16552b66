"""Output of a run: a record of settings and metrics, tables and warnings."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.files import write_json

#: Packages whose versions are in the record
PACKAGES = ("ebm_app", "torch", "torchvision", "diffusers", "accelerate", "numpy")
#: Seconds until a progress bar is shown
DELAY = 5
#: Max difference between two estimators without a warning, in bits per dim
MAX_DISAGREEMENT = 0.1


class Output:
    """Record of a run: a JSON file with command, settings, versions, times and metrics.

    Creates the folder and checks that it is writable before the run starts.

    Args:
        path: JSON file to write.
        settings: dataclass of the run's settings.
    """

    def __init__(self, path: Path, settings: Any = None) -> None:
        self.path, self.folder = path, path.parent
        self.folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=self.folder).close()
        self.begin = time.time()
        self.data = {
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "settings": {} if settings is None else to_dict(settings),
            "versions": {"python": platform.python_version()}
            | {package: version(package) for package in PACKAGES},
            "git_revision": git_revision(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin)),
        }

    def write(self, figures: dict[str, Any] | None) -> None:
        """Write the record; ``figures`` is None before the run has metrics."""
        seconds = round(time.time() - self.begin, 2)
        write_json(self.path, {**self.data, "seconds": seconds, "figures": figures})

    def save(self, figures: dict[str, Any]) -> None:
        """Write the record of a completed run; print the metrics if it cannot be written."""
        try:
            self.write(figures)
        except OSError:
            print(json.dumps(figures), flush=True)
            raise


def progress(name: str, total: int | None = None) -> tqdm:
    """Return a progress bar that is shown after ``DELAY`` seconds, by the first process only, and
    is removed at the end."""
    is_first = os.environ.get("RANK", "0") == "0"
    options = {"leave": False, "delay": DELAY, "mininterval": 1, "disable": not is_first}
    return tqdm(desc=name, total=total, **options)


def warn_of_disagreements(bits: Mapping[str, float]) -> None:
    """Warn of each pair of estimators whose mean bits per dim differ by more than
    ``MAX_DISAGREEMENT``."""
    for (one, a), (other, b) in combinations(bits.items(), 2):
        if not abs(a - b) <= MAX_DISAGREEMENT:  # also true for NaN
            print(
                f"warning: {one} gives {a:.3f} and {other} {b:.3f} bits per dim. Report elbo, "
                "which is a bound for any network.",
                file=sys.stderr,
            )


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Format rows as a Markdown table. Floats have four digits, missing values are empty cells,
    and lists are omitted.

    >>> print(to_markdown([{"model": "digits", "bits_per_dim": 1.67321}]))
    | model | bits_per_dim |
    | --- | --- |
    | digits | 1.673 |
    """
    cells = [(name, value) for row in rows for name, value in row.items()]
    names = list(dict.fromkeys(name for name, value in cells if not isinstance(value, list)))
    lines = [names, ["---"] * len(names)]
    for row in rows:
        values = [row.get(name) for name in names]
        texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        lines.append(["" if text == "None" else text for text in texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lock(path: Path) -> AbstractContextManager:
    """Lock a file until the context ends.

    Raises:
        UserError: if another process holds the lock.
    """
    try:
        return FileLock(path).acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"Another process is writing to {path.parent}. Wait until it ends, or use another "
            "output_dir."
        ) from None


def git_revision() -> str | None:
    """Return the git revision of the checkout, or None for an installed package."""
    tree = Path(__file__).resolve().parents[2]
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40"]
    if not (tree / ".git").exists() or shutil.which("git") is None:
        return None
    answer = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    return answer.stdout.strip() or None
