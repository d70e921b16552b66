"""Checkpoints of a training run: folders ``checkpoint-N`` of safetensors and JSON.

A checkpoint is itself a model's folder (the averaged weights), with what is needed to go on in its
folder ``state``, and the digests of all its files. It is written aside, then renamed, and only
then are old ones removed, so that an interruption or a full disk at any moment leaves the previous
checkpoint intact.
"""

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from ebm_app.folders import CONFIG_FILE, WEIGHTS_FILE
from ebm_app.pretrained import PretrainedModel
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

PREFIX, STATE = "checkpoint-", "state"
#: end of the name of a checkpoint that is being written
PENDING = ".tmp"
TENSORS_FILE, TRAINER_FILE, BEST_FILE = "trainer.safetensors", "trainer.json", "best.safetensors"
DIGESTS_FILE = "digests.json"
FILES = {CONFIG_FILE, WEIGHTS_FILE, STATE, TENSORS_FILE, TRAINER_FILE, BEST_FILE, DIGESTS_FILE}
#: files at the top of a run
RECORDS = (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, RUN_FILE, "loss.png")


def step_of(folder: Path) -> int:
    """The step of a checkpoint by its name."""
    return int(folder.name.removeprefix(PREFIX).removesuffix(PENDING))


def checkpoints(output_dir: Path, end: str = "") -> list[Path]:
    """The finished checkpoints of a run, oldest first; those cut off by the ``end`` PENDING."""
    form = re.compile(PREFIX + r"\d{1,12}" + re.escape(end))
    found = (folder for folder in output_dir.glob(PREFIX + "*") if form.fullmatch(folder.name))
    own = (folder for folder in found if folder.is_dir() and not folder.is_symlink())
    return sorted(own, key=step_of)


def find_checkpoint(output_dir: Path, name: str) -> Path:
    """The checkpoint to resume from: "latest", the last whole one in ``output_dir``, or a path.
    Damaged ones that "latest" passes over are renamed, and named on stderr."""
    if name != "latest":
        folder = Path(name) if os.path.isdir(name) else output_dir / name
        if not os.path.isdir(folder / STATE):  # nor one that cannot be read
            raise UserError(f"--resume_from_checkpoint {name}: no checkpoint in that folder")
        verify(folder)
        own = [checkpoint.resolve() for checkpoint in checkpoints(output_dir)]
        if folder.resolve() not in own:
            refuse_to_overwrite(output_dir)
        elif folder.resolve() != own[-1]:
            raise UserError(
                f"{output_dir} has later checkpoints than {folder.name}: give another "
                "--output_dir, where the run goes on from it"
            )
        return folder
    for folder in reversed(checkpoints(output_dir)):
        try:
            verify(folder)
        except UserError as error:
            print(f"passing over a damaged checkpoint: {error}", file=sys.stderr)
            aside = folder.with_name(folder.name + ".damaged")
            while aside.exists():
                aside = aside.with_name(aside.name + ".damaged")
            folder.rename(aside)
            continue
        return folder
    raise UserError(
        f"--resume_from_checkpoint latest: {output_dir} holds no whole checkpoint; start from the "
        "beginning with --overwrite_output_dir in place of this flag"
    )


def refuse_to_overwrite(output_dir: Path) -> None:
    """Raise a UserError where ``output_dir`` already holds a run."""
    if checkpoints(output_dir) or (output_dir / CONFIG_FILE).exists():
        raise UserError(
            f"{output_dir} already holds a run: give another --output_dir, go on with "
            "--resume_from_checkpoint latest, or replace it with --overwrite_output_dir"
        )


def save_checkpoint(
    output_dir: Path,
    step: int,
    model: PretrainedModel,
    tensors: dict[str, Tensor],
    trainer: dict[str, Any],
    limit: int,
) -> None:
    """Write ``checkpoint-<step>`` of a model that holds its averaged weights, with the best one so
    far if ``trainer`` names one, and rotate. A full disk leaves earlier checkpoints intact."""
    folder = output_dir / f"{PREFIX}{step}"
    for cut_off in checkpoints(output_dir, PENDING):  # a folder that holds more is a user's
        if {re.sub(r"^\.|\.tmp$", "", path.name) for path in cut_off.rglob("*")} <= FILES:
            shutil.rmtree(cut_off)
    pending = aside(folder)
    model.save_pretrained(pending)
    (pending / STATE).mkdir()
    write_tensors(pending / STATE / TENSORS_FILE, tensors)
    write_json(pending / STATE / TRAINER_FILE, trainer)
    if trainer["best"] is not None:
        replace_file(pending / STATE / BEST_FILE, (output_dir / WEIGHTS_FILE).read_bytes())
    write_json(pending / STATE / DIGESTS_FILE, digests(pending))
    with lock_folder(output_dir):
        os.replace(pending, folder)
    for former in checkpoints(output_dir)[:-limit]:  # never half of one under its name
        shutil.rmtree(former.rename(aside(former)))


def aside(folder: Path) -> Path:
    """A free name for a checkpoint that is not whole yet, or not for long."""
    pending = folder.with_name(folder.name + PENDING)
    while pending.exists():
        pending = pending.with_name(pending.name + PENDING)
    return pending


def restore_best(output_dir: Path, folder: Path) -> None:
    """Put the best model as of a checkpoint at the top."""
    replace_file(output_dir / WEIGHTS_FILE, (folder / STATE / BEST_FILE).read_bytes())
    replace_file(output_dir / CONFIG_FILE, (folder / CONFIG_FILE).read_bytes())


def begin(output_dir: Path, overwrite: bool) -> None:
    """Take ``output_dir`` for a new run: what another left there, and nothing else, is deleted if
    that is asked for, and refused otherwise."""
    if not overwrite:
        return refuse_to_overwrite(output_dir)
    for folder in [*checkpoints(output_dir), output_dir / PREVIEWS]:
        if folder.is_dir() and not folder.is_symlink():  # a pipe would be waited for
            shutil.rmtree(folder)
    for name in RECORDS:
        (output_dir / name).unlink(missing_ok=True)


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a checkpoint, by its path in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name != DIGESTS_FILE and path.is_file():
            with open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(folder).as_posix()] = digest
    return found


def verify(folder: Path) -> None:
    """Raise a UserError where files of a checkpoint are not those that were written together."""
    stated, found = read_json(folder / STATE / DIGESTS_FILE), digests(folder)
    if changed := {name for name, _ in stated.items() ^ found.items()}:
        raise UserError(
            f"{folder / shorten(min(changed))} is not the file that was saved there: go on from "
            "another checkpoint"
        )
