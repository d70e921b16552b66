"""Checkpoints of a training run: folders ``checkpoint-N`` of safetensors and JSON.

A checkpoint is the folder of a model (the averaged weights) with a folder ``state`` that holds
all that is needed to resume, and the digests of all files. It is written under a temporary name
and then renamed, and older checkpoints are removed last. An interruption or a full disk at any
moment therefore leaves the previous checkpoint intact.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from ebm_app.folders import CONFIG_FILE, HASHES_FILE, WEIGHTS_FILE
from ebm_app.pretrained import PretrainedModel
from ebm_app.training.run_folder import (
    PENDING,
    PREFIX,
    STATE,
    TRAINER_FILE,
    checkpoints,
    named_checkpoint,
    refuse_to_overwrite,
)
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

TENSORS_FILE, BEST_FILE, DIGESTS_FILE = "trainer.safetensors", "best.safetensors", "digests.json"
#: Files at the top of an output folder
RECORDS = (CONFIG_FILE, WEIGHTS_FILE, HASHES_FILE, METRICS_FILE, RUN_FILE, "loss.png")


def find_checkpoint(output_dir: Path, name: str) -> Path:
    """Return the checkpoint to resume from: a path, a name in ``output_dir``, or "latest" for the
    last intact one there. Damaged checkpoints are reported on stderr and renamed."""
    if name != "latest":
        return _named_checkpoint(output_dir, name)
    for folder in reversed(checkpoints(output_dir)):
        try:
            verify(folder)
            return folder
        except UserError as error:
            print(f"Skipping a damaged checkpoint: {error}", file=sys.stderr)
            renamed = folder.with_name(folder.name + ".damaged")
            while renamed.exists():
                renamed = renamed.with_name(renamed.name + ".damaged")
            folder.rename(renamed)
    raise UserError(
        f"{output_dir} holds no intact checkpoint, so --resume_from_checkpoint latest cannot "
        "resume. Start again with --overwrite_output_dir."
    )


def _named_checkpoint(output_dir: Path, name: str) -> Path:
    folder = named_checkpoint(output_dir, name)
    if not os.path.isdir(folder / STATE):
        raise UserError(
            f"{shorten(name)} is not a checkpoint. Use --resume_from_checkpoint latest or the "
            f"path of a folder {PREFIX}N."
        )
    verify(folder)
    own = [checkpoint.resolve() for checkpoint in checkpoints(output_dir)]
    if folder.resolve() not in own:
        refuse_to_overwrite(output_dir)
    elif folder.resolve() != own[-1]:
        raise UserError(
            f"{output_dir} has later checkpoints than {folder.name}. Use another --output_dir to "
            "resume from it."
        )
    return folder


def save_checkpoint(
    output_dir: Path,
    step: int,
    model: PretrainedModel,
    tensors: dict[str, Tensor],
    trainer: dict[str, Any],
    limit: int,
) -> None:
    """Write ``checkpoint-<step>`` and keep the last ``limit`` checkpoints.

    Args:
        model: holds the averaged weights.
        tensors, trainer: from ``TrainingState.collect``. If ``trainer`` names a best model, its
            weights are copied from ``output_dir``.
    """
    for incomplete in checkpoints(output_dir, PENDING):
        shutil.rmtree(incomplete)
    folder = output_dir / f"{PREFIX}{step}"
    pending = folder.with_name(folder.name + PENDING)
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


def prepare_folder(output_dir: Path, overwrite: bool) -> None:
    """Prepare ``output_dir`` for a new run. An earlier run there is deleted if ``overwrite`` is
    set, and refused otherwise. Other files are kept."""
    if not overwrite:
        return refuse_to_overwrite(output_dir)
    for folder in [*checkpoints(output_dir), output_dir / PREVIEWS]:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for name in RECORDS:
        (output_dir / name).unlink(missing_ok=True)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digests of the files of a checkpoint, by relative path."""
    values = {}
    for path in sorted(folder.rglob("*")):
        if path.name != DIGESTS_FILE and path.is_file():
            with open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            values[path.relative_to(folder).as_posix()] = digest
    return values


def verify(folder: Path) -> None:
    """Raise a UserError if the files of a checkpoint differ from those that were saved."""
    saved, current = read_json(folder / STATE / DIGESTS_FILE), digests(folder)
    if changed := {name for name, _ in saved.items() ^ current.items()}:
        raise UserError(
            f"{folder / shorten(min(changed))} differs from the file that was saved. Resume from "
            "another checkpoint."
        )
