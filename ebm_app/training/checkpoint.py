"""Checkpoints of a training run: folders ``checkpoint-N`` of safetensors and JSON.

A checkpoint is a model folder (the averaged weights) with a subfolder ``state``, which holds the
state of the run. It is written under a temporary name, then renamed; older checkpoints are deleted
last. An interruption or a full disk therefore always leaves the previous checkpoint intact.
"""

import os
import shutil
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, ClassVar

from ebm_app.config import without_removed
from ebm_app.pretrained import (
    CONFIG_FILE,
    PREFIX,
    WEIGHTS_FILE,
    PretrainedModel,
    checkpoints,
)
from ebm_app.training.config import AnyRun
from ebm_app.utils import METRICS_FILE, PREVIEWS, RUN_FILE, files
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import STRICT, Count, from_dict

if TYPE_CHECKING:
    from torch import Tensor

    from ebm_app.training.trainer import Trainer

STATE = "state"
#: Suffix of a checkpoint being written or deleted
PENDING = ".tmp"
#: Files of the folder ``state``
TRAINER_FILE, TENSORS_FILE = "trainer.json", "trainer.safetensors"
BEST_FILE = "best.safetensors"
#: Version of the folder ``state``
FORMAT_VERSION = 5
#: Configuration of the images that a run must be resumed with
IMAGES = ("image_shape", "num_levels", "num_classes")
#: Files at the top of an output folder
RECORDS = (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, RUN_FILE, "loss.png")
LATEST = "latest"


@dataclass
class Progress:
    """Progress of a run, stored as JSON in a checkpoint.

    Args:
        settings: settings of the run ("train") and of its model ("ebm").
        total_batch_size: images per step, over all processes.
        step: number of completed steps.
        loss: last logged loss, or None.
        seconds, core_seconds: wall-clock and CPU seconds of all training steps, without
            validation, summed over resumes; CPU seconds also over processes.
        elapsed: seconds since the first step, with validations, summed over resumes.
        progress, previous_progress: completed fraction of the run after the last step, and after
            the step before.
        decay_began: step at which the learning rate began to decay, or None.
        validated: step of the last validation.
        validation_images: number of validation images of a run in minutes, 0 for all.
        validation_seconds, last_validation_seconds: time of all validations, and of the last one.
        best: metrics of the best model so far, or None.
        ema_step: number of updates of the averaged weights.
        scaler: state of the gradient scaler of fp16, or None.
    """

    __pydantic_config__: ClassVar = STRICT
    settings: dict[str, dict[str, Any]]
    total_batch_size: int
    step: Count = 0
    loss: float | None = None
    seconds: float = 0.0
    core_seconds: float = 0.0
    elapsed: float = 0.0
    progress: float = 0.0
    previous_progress: float = 0.0
    decay_began: Count | None = None
    validated: Count = 0
    validation_images: Count = 0
    validation_seconds: float = 0.0
    last_validation_seconds: float = 0.0
    best: dict[str, int | float | None] | None = None
    ema_step: Count = 0
    scaler: dict[str, int | float] | None = None
    format_version: int = FORMAT_VERSION


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
    """Return the folder of a checkpoint, given its path, its name in ``output_dir``, or the folder
    of a run for its last checkpoint."""
    folder = Path(name) if os.path.isdir(name) else output_dir / name
    return (checkpoints(folder) or [folder])[-1]


def recorded_run(kind: type[AnyRun], output_dir: Path, name: str) -> tuple[AnyRun, Path]:
    """Return the recorded settings of the run to resume, and its checkpoint.

    Args:
        kind: settings class of the run.
        output_dir: folder of the run.
        name: "latest", or the path or name of a checkpoint.

    Raises:
        UserError: if no checkpoint is intact, or its run uses a removed feature.
    """
    named = [named_checkpoint(output_dir, name)]
    for folder in reversed(checkpoints(output_dir)) if name == LATEST else named:
        place = folder / STATE / TRAINER_FILE
        try:
            if name == LATEST:
                verify(folder)
            data = files.read_json(place)
        except UserError:
            continue
        check_version(data, folder)
        settings = data.get("settings")
        recorded = settings.get("train") if isinstance(settings, dict) else None
        if not isinstance(recorded, dict):
            continue
        recorded = without_removed(recorded, place)
        with suppress(UserError):
            return from_dict(kind, recorded, place), folder
    raise UserError(
        f"{output_dir} has no intact checkpoint to resume from. Start a new run with "
        "--overwrite_output_dir."
        if name == LATEST
        else f"{shorten(name)} is not a checkpoint. Use --resume_from_checkpoint latest, or the "
        f"path of a {PREFIX}N folder."
    )


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
    model: PretrainedModel,
    tensors: "dict[str, Tensor]",
    trainer: dict[str, Any],
    limit: int,
) -> None:
    """Write a checkpoint, then delete all but the last ``limit`` checkpoints of the run.

    Args:
        folder: ``checkpoint-N`` in the output folder.
        model: model with the averaged weights.
        tensors, trainer: from ``collect``. If ``trainer`` records a best model, its weights
            are copied from the output folder.
    """
    output_dir, pending = folder.parent, folder.with_name(folder.name + PENDING)
    for incomplete in checkpoints(output_dir, PENDING):
        shutil.rmtree(incomplete)
    model.save_pretrained(pending)
    (pending / STATE).mkdir()
    files.write_tensors(pending / STATE / TENSORS_FILE, tensors)
    files.write_json(pending / STATE / TRAINER_FILE, trainer)
    if trainer["best"] is not None:
        files.replace_file(pending / STATE / BEST_FILE, (output_dir / WEIGHTS_FILE).read_bytes())
    os.replace(pending, folder)
    files.sync_folder(output_dir)
    for old in checkpoints(output_dir)[:-limit]:
        shutil.rmtree(old.rename(old.with_name(old.name + PENDING)))


def verify(folder: Path) -> None:
    """Raise a UserError if a file of a checkpoint is missing or truncated."""
    state = folder / STATE
    best = [state / BEST_FILE] if files.read_json(state / TRAINER_FILE).get("best") else []
    for path in (folder / WEIGHTS_FILE, state / TENSORS_FILE, *best):
        files.read_header(path)


def collect(trainer: "Trainer", losses: "Tensor") -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return the tensors and the JSON data of a checkpoint.

    The tensors are "weights.<name>", "optimizer.<index of the weight>.<name>", "ema.<index>" (the
    averaged weights) and "pending" (``losses`` that are not logged yet).
    """
    now, scaler = trainer.now, trainer.accelerator.scaler
    now.ema_step = trainer.ema.optimization_step
    now.scaler = None if scaler is None else scaler.state_dict()
    weights = trainer.ebm.state_dict()
    tensors = {f"weights.{name}": value.clone() for name, value in weights.items()}
    for index, values in trainer.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = value
    tensors |= {f"ema.{i}": value for i, value in enumerate(trainer.ema.shadow_params)}
    return {**tensors, "pending": losses}, asdict(now)


def check_version(data: dict[str, Any], folder: Path) -> None:
    """Raise a UserError for the record of a checkpoint of another version."""
    if data.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} was written by another version of ebm_app. Resume it with that version."
        )


def load(trainer: "Trainer", folder: Path) -> None:
    """Resume the run of a trainer from a checkpoint."""
    place = folder / STATE / TRAINER_FILE
    data = files.read_json(place)
    check_version(data, folder)
    saved, model = from_dict(Progress, data, str(place)), trainer.ebm
    if saved.total_batch_size != trainer.now.total_batch_size:
        raise UserError(
            f"{folder} was trained with {saved.total_batch_size} images per step, over all "
            f"processes, got {trainer.now.total_batch_size}. Resume with as many processes."
        )
    if any(saved.settings["ebm"][key] != trainer.now.settings["ebm"][key] for key in IMAGES):
        raise UserError(
            f"{folder} was trained on images of another shape or number of levels or classes. "
            "Resume with the images of its start."
        )
    tensors = files.read_tensors(folder / STATE / TENSORS_FILE)
    if trainer.accelerator.scaler is not None:
        trainer.accelerator.scaler.load_state_dict(saved.scaler)
    model.load_state_dict({name: tensors[f"weights.{name}"] for name in model.state_dict()})
    state = defaultdict(dict)
    for _, index, name in (key.split(".") for key in tensors if key.startswith("optimizer.")):
        state[int(index)][name] = tensors[f"optimizer.{index}.{name}"]
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": state, "param_groups": groups})
    shadow = range(len(trainer.ema.shadow_params))
    trainer.ema.shadow_params = [tensors[f"ema.{i}"].to(model.device) for i in shadow]
    trainer.ema.optimization_step = saved.ema_step
    trainer.now = replace(saved, settings=trainer.now.settings)
    trainer.pending = list(tensors["pending"].to(model.device))
    trainer.start = (saved.step, saved.seconds)
    if folder.resolve() == trainer.folder(saved.step).resolve():
        trainer.saved = saved.step
