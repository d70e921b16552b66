"""What the scripts share: flags made from configurations, friendly errors, run records."""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ebm_app.errors import UserError
from ebm_app.models.config import write_json
from ebm_app.runs.interrupts import Interrupted

Main = Callable[[Sequence[str] | None], dict[str, Any] | None]


def run_script(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run a script's ``main`` and return its exit code.

    The figures it returns are printed as one JSON object on the last line. A UserError becomes one
    sentence on stderr and exit code 2; a run that a signal ended gives 128 + its number.
    """
    try:
        figures = main(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"stopped by {stop}; go on with --resume_from_checkpoint latest", file=sys.stderr)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if figures is not None:
        print(json.dumps(figures), flush=True)
    return 0


class Parser(argparse.ArgumentParser):
    """An argument parser whose help shows every default."""

    def __init__(self, description: str) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )

    def add_common(self) -> None:
        """The flags of every script."""
        self.add_argument("--seed", type=int, default=0, help="seed of all noise")
        self.add_argument("--device", default="auto", help="auto, cpu or cuda")

    def add_config(self, cls: type) -> None:
        """A flag for every field of a configuration; not given, it is absent from the result."""
        hints = typing.get_type_hints(cls)
        for item in dataclasses.fields(cls):
            self.add_argument(
                f"--{item.name}",
                type=hints[item.name],
                default=argparse.SUPPRESS,
                help=f"{item.metadata['help']} (default: {item.default}, or the preset's)",
            )


def resolve_device(name: str) -> str:
    """The device to use for "auto", "cpu" or "cuda".

    Raises:
        UserError: for another name, or cuda where there is none.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"unknown device '{name}': choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is available: give --device cpu")
    return name


class RunRecord:
    """``<name>.json``: what was run, with what, and what came out; time runs from its making."""

    packages = ("ebm_app", "torch", "torchvision", "diffusers", "accelerate", "numpy")

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.begin = path, time.time()
        self.data = {
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "settings": settings,
            "versions": {"python": platform.python_version()}
            | {package: version(package) for package in self.packages},
            "git_revision": git_revision(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin)),
        }

    def write(self, figures: dict[str, Any] | None) -> None:
        """Write the record with its figures, None while there are none yet."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        seconds = round(time.time() - self.begin, 2)
        write_json(self.path, {**self.data, "seconds": seconds, "figures": figures})


def git_revision() -> str | None:
    """The revision of the working tree this package is run from, or None outside a checkout."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        return None
    return answer.stdout.strip() or None
