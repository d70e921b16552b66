"""Checkpoints of a training run: folders ``checkpoint-N`` of safetensors and JSON.

A checkpoint is a model folder (the averaged weights) with a subfolder ``state``, which holds the
state of the run and the digests of all files. It is written under a temporary name, then renamed;
older checkpoints are deleted last. An interruption or a full disk therefore always leaves the
previous checkpoint intact.

This module does not import torch, so that a non-empty output folder is reported immediately.
"""

import hashlib
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from ebm_app.folders import CONFIG_FILE, HASHES_FILE, WEIGHTS_FILE
from ebm_app.utils import METRICS_FILE, PREVIEWS, RUN_FILE
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.files import (
    lock_folder,
    open_file,
    read_json,
    replace_file,
    write_json,
    write_tensors,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ebm_app.pretrained import PretrainedModel

PREFIX, STATE = "checkpoint-", "state"
#: Suffix of a checkpoint being written or deleted
PENDING = ".tmp"
#: Files of the folder ``state``
TRAINER_FILE, TENSORS_FILE = "trainer.json", "trainer.safetensors"
BEST_FILE, DIGESTS_FILE = "best.safetensors", "digests.json"
#: Files at the top of an output folder
RECORDS = (CONFIG_FILE, WEIGHTS_FILE, HASHES_FILE, METRICS_FILE, RUN_FILE, "loss.png")
LATEST = "latest"


def checkpoints(output_dir: Path, suffix: str = "") -> list[Path]:
    """Return the complete checkpoints of a run, oldest first. With the suffix ``PENDING``, return
    the incomplete ones."""
    pattern = re.compile(PREFIX + r"(\d{1,12})" + re.escape(suffix))
    matches = {folder: pattern.fullmatch(folder.name) for folder in output_dir.glob(PREFIX + "*")}
    steps = {folder: int(match[1]) for folder, match in matches.items() if match}
    folders = (folder for folder in steps if folder.is_dir() and not folder.is_symlink())
    return sorted(folders, key=steps.get)


def refuse_to_overwrite(output_dir: Path) -> None:
    """Raise a UserError if ``output_dir`` already holds a run."""
    if checkpoints(output_dir) or (output_dir / CONFIG_FILE).exists():
        raise UserError(
            f"{output_dir} already holds a run. Use another --output_dir, resume with "
            "--resume_from_checkpoint latest, or replace it with --overwrite_output_dir."
        )


def prepare_folder(output_dir: Path, overwrite: bool) -> None:
    """Prepare ``output_dir`` for a new run: delete the previous run if ``overwrite`` is set, and
    otherwise refuse to replace it. Other files are kept."""
    if not overwrite:
        return refuse_to_overwrite(output_dir)
    for folder in [*checkpoints(output_dir), output_dir / PREVIEWS]:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for name in RECORDS:
        (output_dir / name).unlink(missing_ok=True)


def named_checkpoint(output_dir: Path, name: str) -> Path:
    """Return the folder of a checkpoint, given its path or its name in ``output_dir``."""
    return Path(name) if os.path.isdir(name) else output_dir / name


def recorded_settings(output_dir: Path, name: str) -> dict[str, Any]:
    """Return the recorded settings of the run to resume, or {} if no checkpoint is readable; the
    error is reported on loading. The checkpoint is not verified."""
    named = [named_checkpoint(output_dir, name)]
    folders = reversed(checkpoints(output_dir)) if name == LATEST else named
    for folder in folders:
        with suppress(UserError):
            run = read_json(folder / STATE / TRAINER_FILE)
            return run.get("settings", {}) | run.get("origin", {})
    return {}


def find_checkpoint(output_dir: Path, name: str) -> Path:
    """Return the checkpoint to resume from: "latest" selects the last intact one in
    ``output_dir``; otherwise ``name`` is a path or a name in it. Damaged checkpoints skipped by
    "latest" are reported on stderr and renamed."""
    if name == LATEST:
        return _last_intact(output_dir)
    folder = named_checkpoint(output_dir, name)
    if not os.path.isdir(folder / STATE):
        raise UserError(
            f"{shorten(name)} is not a checkpoint. Use --resume_from_checkpoint latest, or the "
            f"path of a {PREFIX}N folder."
        )
    verify(folder)
    own = [checkpoint.resolve() for checkpoint in checkpoints(output_dir)]
    if folder.resolve() not in own:
        refuse_to_overwrite(output_dir)
    elif folder.resolve() != own[-1]:
        raise UserError(
            f"{output_dir} has checkpoints later than {folder.name}. To resume from it, use "
            "another --output_dir."
        )
    return folder


def _last_intact(output_dir: Path) -> Path:
    for folder in reversed(checkpoints(output_dir)):
        try:
            verify(folder)
            return folder
        except UserError as error:
            print(f"Skipping a damaged checkpoint: {error}", file=sys.stderr)
            os.replace(folder, mkdtemp(prefix=f"{folder.name}.damaged-", dir=output_dir))
    raise UserError(
        f"{output_dir} has no intact checkpoint to resume from. Start a new run with "
        "--overwrite_output_dir."
    )


def save_checkpoint(
    folder: Path,
    model: "PretrainedModel",
    tensors: "dict[str, Tensor]",
    trainer: dict[str, Any],
    limit: int,
) -> None:
    """Write a checkpoint, then delete all but the last ``limit`` checkpoints of the run.

    Args:
        folder: ``checkpoint-N`` in the output folder.
        model: model with the averaged weights.
        tensors, trainer: from ``state.collect``. If ``trainer`` records a best model, its weights
            are copied from the output folder.
    """
    output_dir, pending = folder.parent, folder.with_name(folder.name + PENDING)
    for incomplete in checkpoints(output_dir, PENDING):
        shutil.rmtree(incomplete)
    model.save_pretrained(pending)
    (pending / STATE).mkdir()
    write_tensors(pending / STATE / TENSORS_FILE, tensors)
    write_json(pending / STATE / TRAINER_FILE, trainer)
    if trainer["best"] is not None:
        replace_file(pending / STATE / BEST_FILE, (output_dir / WEIGHTS_FILE).read_bytes())
    write_json(pending / STATE / DIGESTS_FILE, digests(pending))
    with lock_folder(output_dir):
        os.replace(pending, folder)
    for old in checkpoints(output_dir)[:-limit]:
        shutil.rmtree(old.rename(old.with_name(old.name + PENDING)))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digest of each file of a checkpoint, keyed by relative path."""
    values = {}
    for path in sorted(folder.rglob("*")):
        if path.name != DIGESTS_FILE and path.is_file():
            with open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            values[path.relative_to(folder).as_posix()] = digest
    return values


def verify(folder: Path) -> None:
    """Raise a UserError if a file of a checkpoint changed after it was saved."""
    saved, current = read_json(folder / STATE / DIGESTS_FILE), digests(folder)
    if changed := {name for name, _ in saved.items() ^ current.items()}:
        raise UserError(
            f"{folder / shorten(min(changed))} changed after it was saved. Resume from another "
            "checkpoint."
        )
