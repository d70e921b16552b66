"""Checkpoints of a training run: folders ``checkpoint-N`` of safetensors and JSON.

A checkpoint is itself an EBM folder (the averaged weights), with what is needed to go on in its
folder ``state``. It is written aside, then renamed, and only then are old ones removed, so that an
interruption or a full disk at any moment leaves the previous checkpoint intact.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.files import METRICS_FILE, PREVIEWS
from ebm_app.files.records import read_json, write_json
from ebm_app.files.tensors import read_tensors, write_tensors
from ebm_app.files.writing import explained_write
from ebm_app.models.folders import CONFIG_FILE, WEIGHTS_FILE

PREFIX, STATE = "checkpoint-", "state"
TENSORS_FILE, TRAINER_FILE = "trainer.safetensors", "trainer.json"


def folder_of(output_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return output_dir / f"{PREFIX}{step}"


def checkpoints(output_dir: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    found = [
        (int(match[1]), folder)
        for folder in output_dir.glob(PREFIX + "*")
        if folder.is_dir() and (match := re.fullmatch(PREFIX + r"(\d+)", folder.name))
    ]
    return [folder for _, folder in sorted(found)]


def find_checkpoint(output_dir: Path, name: str) -> Path:
    """The checkpoint to resume from: "latest" in ``output_dir``, or a path.

    Raises:
        UserError: where there is none.
    """
    if name != "latest":
        folder = Path(name) if Path(name).is_dir() else output_dir / name
        if not (folder / STATE).is_dir():
            raise UserError(f"--resume_from_checkpoint {name}: no checkpoint in that folder")
        return folder
    found = checkpoints(output_dir)
    if not found:
        raise UserError(
            f"--resume_from_checkpoint latest: {output_dir} holds no checkpoint; leave the flag "
            "out to start from the beginning"
        )
    return found[-1]


def kept(output_dir: Path) -> str:
    """What is left of a run that stops now, in words."""
    found = checkpoints(output_dir)
    return f"{found[-1]} is intact: go on from it" if found else "no checkpoint was saved yet"


def refuse_to_overwrite(output_dir: Path) -> None:
    """Raise a UserError where ``output_dir`` already holds a run."""
    if checkpoints(output_dir) or (output_dir / CONFIG_FILE).exists():
        raise UserError(
            f"{output_dir} already holds a run: give another --output_dir, go on with "
            "--resume_from_checkpoint latest, or replace it with --overwrite_output_dir"
        )


def remove_run(output_dir: Path) -> None:
    """Delete what a run left in ``output_dir``, and nothing else."""
    for folder in [*checkpoints(output_dir), output_dir / PREVIEWS]:
        _remove(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE):
        (output_dir / name).unlink(missing_ok=True)


def save_checkpoint(
    output_dir: Path,
    step: int,
    ebm: EBM,
    tensors: dict[str, Tensor],
    trainer: dict[str, Any],
    limit: int,
) -> Path:
    """Write ``checkpoint-<step>`` and rotate.

    Args:
        ebm: the model to be used, with its averaged weights.
        tensors: the tensors of the run's state; trainer: the rest of it.
        limit: checkpoints kept.

    Raises:
        UserError: where the disk is full or not writable; earlier checkpoints are intact.
    """
    folder = folder_of(output_dir, step)
    pending = folder.with_name(folder.name + ".tmp")
    with explained_write(output_dir, kept(output_dir)):
        _remove(pending)
        try:
            ebm.save_pretrained(pending)
            (pending / STATE).mkdir()
            write_tensors(pending / STATE / TENSORS_FILE, tensors)
            write_json(pending / STATE / TRAINER_FILE, trainer)
            _sync(pending)
            # a run resumed from an earlier checkpoint may come by this step again
            _remove(folder)
            os.replace(pending, folder)
        except BaseException:
            shutil.rmtree(pending, ignore_errors=True)
            raise
    for old in checkpoints(output_dir)[:-limit]:
        _remove(old)
    return folder


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, trainer) of a checkpoint.

    Raises:
        UserError: where it is incomplete or damaged.
    """
    state = folder / STATE
    return read_tensors(state / TENSORS_FILE), read_json(state / TRAINER_FILE)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path) -> None:
    """Force the files of a folder to the disk, so that a rename never outlives their content."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
