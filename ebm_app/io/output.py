"""What a run leaves: a record in a folder that is made, tried and locked before the work."""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Self

from ebm_app.io.errors import UserError
from ebm_app.io.records import write_json
from ebm_app.io.writing import open_to_append

PACKAGES = ("ebm_app", "torch", "torchvision", "diffusers", "accelerate", "numpy")


def hold(path: Path) -> IO[str]:
    """The file ``path``, which this process alone holds until it is closed or the process ends.

    Raises:
        UserError: where another holds it. OSError: where the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open_to_append(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            return file
    except BlockingIOError:
        pass
    except OSError:  # a disk without locks
        return file
    file.close()
    raise UserError(
        f"{path.parent} is being written by another process: wait for it, or give another "
        "--output_dir"
    )


def _release(path: Path, file: IO[str]) -> None:
    with suppress(OSError):  # of a folder that has become unwritable
        path.unlink(missing_ok=True)
    file.close()


class Output:
    """The record ``path`` of a run, held by this process until it is left as a context, or is
    no more: what was run, with what settings, and what came out. Time runs from its making.

    Args:
        path: the record. settings: what it says was asked for.
        is_main: one of several processes writes; the others do nothing.

    Raises:
        UserError: at once, where another process writes the same record. OSError: where the folder
            cannot be written.
    """

    def __init__(self, path: Path, settings: dict[str, Any], is_main: bool = True) -> None:
        self.path, self.folder, self.is_main = path, path.parent, is_main
        self.begin = time.time()
        self.data = {
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "settings": settings,
            "versions": {"python": platform.python_version()}
            | {package: version(package) for package in PACKAGES},
            "git_revision": git_revision(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin)),
        }
        if is_main:
            lock = path.with_name(path.name + ".lock")
            self.release = weakref.finalize(self, _release, lock, hold(lock))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_main:
            self.release()

    def write(self, metrics: dict[str, Any] | None) -> None:
        """The record with its metrics under the key "figures", None while there are none."""
        if self.is_main:
            seconds = round(time.time() - self.begin, 2)
            write_json(self.path, {**self.data, "seconds": seconds, "figures": metrics})

    def save(self, metrics: dict[str, Any]) -> None:
        """The record of the result; see ``saving``."""
        with self.saving(metrics):
            pass

    @contextmanager
    def saving(self, metrics: dict[str, Any]) -> Iterator[None]:
        """Write the record; within it, what else belongs to the result is written. Where the disk
        refuses, the metrics are printed all the same."""
        try:
            self.write(metrics)
            yield
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
