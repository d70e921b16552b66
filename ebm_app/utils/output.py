"""What a run leaves: a record in a folder that is made and tried before the work."""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.files import write_json

PACKAGES = ("ebm_app", "torch", "torchvision", "diffusers", "accelerate", "numpy")


def hold(path: Path) -> IO[str]:
    """The file ``path``, which this process alone holds until it is closed or the process ends."""
    file = open(os.open(path, os.O_RDWR | os.O_CREAT), "w")  # a pipe is never waited for
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(
            f"{path.parent} is being written by another process: wait for it, or give another "
            "--output_dir"
        ) from None
    except OSError:  # a disk without locks
        pass
    return file


class Output:
    """The record ``path`` of a run: what was run, with what settings, a dataclass, and what came
    out. Time runs from its making."""

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

    def write(self, metrics: dict[str, Any] | None) -> None:
        """The record with its metrics under the key "figures", None while there are none."""
        seconds = round(time.time() - self.begin, 2)
        write_json(self.path, {**self.data, "seconds": seconds, "figures": metrics})

    def save(self, metrics: dict[str, Any]) -> None:
        """The record of the result; where the disk refuses, it is printed all the same."""
        try:
            self.write(metrics)
        except OSError:
            print(json.dumps(metrics), flush=True)
            raise


def git_revision() -> str | None:
    """The revision of the package's own checkout, or None where it is installed elsewhere."""
    tree = Path(__file__).resolve().parents[2]
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40"]
    if not (tree / ".git").exists() or shutil.which("git") is None:
        return None
    answer = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    return answer.stdout.strip() or None
