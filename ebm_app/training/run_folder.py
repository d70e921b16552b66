"""Output folder of a run: whether it holds a run, its checkpoints, and what they recorded.

Imports no torch, so that a mistake is reported at once.
"""

import os
import re
from pathlib import Path
from typing import Any

from ebm_app.folders import CONFIG_FILE
from ebm_app.utils import RUN_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.files import read_json

PREFIX, STATE, TRAINER_FILE = "checkpoint-", "state", "trainer.json"
#: Suffix of a checkpoint being written or deleted
PENDING = ".tmp"


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(folder.name.removeprefix(PREFIX).removesuffix(PENDING))


def checkpoints(output_dir: Path, suffix: str = "") -> list[Path]:
    """Return the complete checkpoints of a run, oldest first; the suffix ``PENDING`` selects
    incomplete ones."""
    pattern = re.compile(PREFIX + r"\d{1,12}" + re.escape(suffix))
    named = (folder for folder in output_dir.glob(PREFIX + "*") if pattern.fullmatch(folder.name))
    folders = (folder for folder in named if folder.is_dir() and not folder.is_symlink())
    return sorted(folders, key=step_of)


def named_checkpoint(output_dir: Path, name: str) -> Path:
    """Return the folder of a checkpoint by its path or its name in ``output_dir``."""
    return Path(name) if os.path.isdir(name) else output_dir / name


def refuse_to_overwrite(output_dir: Path) -> None:
    """Raise a UserError if ``output_dir`` already holds a run."""
    if checkpoints(output_dir) or (output_dir / CONFIG_FILE).exists():
        raise UserError(
            f"{output_dir} already holds a run. Use another --output_dir, resume with "
            "--resume_from_checkpoint latest, or replace it with --overwrite_output_dir."
        )


def recorded_run(output_dir: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and the flags of the run to resume, or {} and {} if no checkpoint can be
    read, which is reported when it is loaded. The checkpoint is not verified."""
    named = [named_checkpoint(output_dir, name)]
    for folder in reversed(checkpoints(output_dir)) if name == "latest" else named:
        try:
            run = read_json(folder / STATE / TRAINER_FILE)
            settings, origin = run["settings"], run["origin"]
            names = [part["dataset"] for part in settings.values() if "dataset" in part]
            recorded = origin.get("flags") or recorded_flags(folder.parent / RUN_FILE)
            model = {"dataset": names[0]} if names else {}
            return settings, {**recorded, **settings.get("teacher", {}), **model}
        except (UserError, KeyError, TypeError, AttributeError):
            continue
    return {}, {}


def recorded_flags(record: Path) -> dict[str, Any]:
    """Return the flags of a run record that choose data and weights; those of runs of earlier
    versions, which did not record them, from the command."""
    if not record.is_file():
        return {}
    run = read_json(record)
    settings, command = run.get("settings", {}), run.get("command", [])
    if not (isinstance(settings, dict) and isinstance(command, list)):
        return {}
    if isinstance(flags := settings.get("flags"), dict):
        return flags
    words = [str(word) for word in command]
    pairs = dict(zip(words, words[1:], strict=False))
    names = ("dataset", "data_root", "flow", "init_from", "size")
    flags = {"size": "small"}  # the default
    flags |= {name: pairs[f"--{name}"] for name in names if f"--{name}" in pairs}
    side = pairs.get("--resolution", "")
    return {**flags, "resolution": int(side)} if side.isdigit() else flags
