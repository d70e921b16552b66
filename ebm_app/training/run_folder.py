"""Output folder of a run: its checkpoints, and whether it holds a run.

Imports no torch, so that a mistake is reported at once.
"""

import re
from pathlib import Path

from ebm_app.folders import CONFIG_FILE
from ebm_app.utils.errors import UserError

PREFIX = "checkpoint-"
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


def refuse_to_overwrite(output_dir: Path) -> None:
    """Raise a UserError if ``output_dir`` already holds a run."""
    if checkpoints(output_dir) or (output_dir / CONFIG_FILE).exists():
        raise UserError(
            f"{output_dir} already holds a run. Use another --output_dir, resume with "
            "--resume_from_checkpoint latest, or replace it with --overwrite_output_dir."
        )
