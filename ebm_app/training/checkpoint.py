"""Checkpoints of a training run: folders ``checkpoint-N`` of safetensors and JSON.

A checkpoint is a model folder (the averaged weights) with a subfolder ``state``, which holds the
state of the run. It is written under a temporary name, then renamed; older checkpoints are deleted
last. An interruption or a full disk therefore always leaves the previous checkpoint intact.
"""

import os
import shutil
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from accelerate.optimizer import AcceleratedOptimizer
from diffusers.training_utils import EMAModel
from torch import Tensor
from torch.amp import GradScaler

from ebm_app.ebm import EBM
from ebm_app.pretrained import CONFIG_FILE, PREFIX, WEIGHTS_FILE, checkpoints, read_weights
from ebm_app.training.settings import AnyRun
from ebm_app.utils import METRICS_FILE, PREVIEWS, RUN_FILE, files
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import STRICT, Count, from_dict

STATE = "state"
#: Suffix of a checkpoint being written or deleted
PENDING = ".tmp"
#: Files of the folder ``state``
STATE_FILE, TENSORS_FILE, BEST_FILE = "state.json", "state.safetensors", "best.safetensors"
#: Version of the folder ``state``
FORMAT_VERSION = 6
#: Configuration of the images that a run must be resumed with
IMAGES = ("image_shape", "num_levels", "num_classes", "class_names")
#: Files at the top of an output folder
RECORDS = (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, RUN_FILE, "loss.png")
LATEST = "latest"


@dataclass
class State:
    """State of a run, stored as JSON in a checkpoint. Times are summed over resumes.

    Args:
        settings: settings of the run ("train") and of its model ("ebm").
        num_processes: number of processes.
        step: number of completed steps.
        loss: last logged loss, or None.
        seconds: wall-clock seconds of the run, from the start of its processes.
        start_up_seconds, training_seconds, validation_seconds: those before the first step, of all
            steps, and of all validations with their previews.
        last_validation_seconds, last_save_seconds: those of the last validation and checkpoint.
        core_seconds: CPU seconds of all steps, summed over processes.
        progress, previous_progress: completed fraction of the run after the last step, and after
            the step before.
        decay_began: step at which the learning rate began to decay, or None.
        validated: step of the last validation.
        validation_images, preview_images: numbers of images of a validation, and of its samples.
            The first validation chooses them.
        best: metrics of the best model so far, or None.
        ema_step: number of updates of the averaged weights.
        scaler: state of the gradient scaler of fp16, or None.
    """

    __pydantic_config__: ClassVar = STRICT
    settings: dict[str, dict[str, Any]]
    num_processes: int
    step: Count = 0
    loss: float | None = None
    seconds: float = 0.0
    start_up_seconds: float = 0.0
    training_seconds: float = 0.0
    validation_seconds: float = 0.0
    last_validation_seconds: float = 0.0
    last_save_seconds: float = 0.0
    core_seconds: float = 0.0
    progress: float = 0.0
    previous_progress: float = 0.0
    decay_began: Count | None = None
    validated: Count = 0
    validation_images: Count = 0
    preview_images: Count = 0
    best: dict[str, int | float | None] | None = None
    ema_step: Count = 0
    scaler: dict[str, int | float] | None = None
    format_version: int = FORMAT_VERSION


def refuse_to_overwrite(output_dir: Path) -> None:
    """Raise a UserError if ``output_dir`` already holds a run."""
    if checkpoints(output_dir) or (output_dir / CONFIG_FILE).exists():
        raise UserError(
            f"{output_dir} already holds a run. Use another output_dir, resume it with "
            "resume_from_checkpoint latest, or replace it with overwrite_output_dir."
        )


def prepare_folder(output_dir: Path, overwrite: bool, resumed: Path | None = None) -> None:
    """Prepare ``output_dir`` for a run. Other files are kept.

    For a new run, delete the previous run if ``overwrite`` is set, and otherwise refuse to replace
    it. A run that is resumed from one of its own checkpoints keeps its files.
    """
    if resumed is not None and is_in(resumed, output_dir):
        return
    if resumed is not None or not overwrite:
        refuse_to_overwrite(output_dir)
        return
    for folder in [*checkpoints(output_dir), output_dir / PREVIEWS]:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for name in RECORDS:
        (output_dir / name).unlink(missing_ok=True)


def find_checkpoint(output_dir: Path, name: str) -> Path:
    """Return the checkpoint to resume from.

    Args:
        name: "latest", for the last checkpoint in ``output_dir``; a checkpoint, by its path or its
            name in ``output_dir``; or the folder of a run, for its last checkpoint.

    Raises:
        UserError: if no checkpoint is found, or if ``output_dir`` has later checkpoints.
    """
    own = checkpoints(output_dir)
    if name == LATEST:
        if not own:
            raise UserError(
                f"{output_dir} has no checkpoint to resume from. Start a new run with "
                "overwrite_output_dir."
            )
        return own[-1]
    folder = Path(name) if os.path.isdir(name) else output_dir / name
    folder = (checkpoints(folder) or [folder])[-1]
    if not (folder / STATE).is_dir():
        raise UserError(
            f"{shorten(name)} is not a checkpoint. Set resume_from_checkpoint to latest, or to "
            f"the path of a {PREFIX}N folder."
        )
    if is_in(folder, output_dir) and folder.name != own[-1].name:
        raise UserError(
            f"{output_dir} has checkpoints later than {folder.name}. To resume from it, use "
            "another output_dir."
        )
    return folder


def is_in(folder: Path, output_dir: Path) -> bool:
    """Whether a checkpoint is one of a run."""
    return folder.resolve().parent == output_dir.resolve()


def read_state(folder: Path) -> State:
    """Read the state of a run from its checkpoint."""
    path = folder / STATE / STATE_FILE
    data = files.read_json(path)
    if data.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} was written by another version of ebm_app. Resume it with that version."
        )
    return from_dict(State, data, str(path))


def recorded_settings(kind: type[AnyRun], folder: Path) -> AnyRun:
    """Return the settings of the run of a checkpoint."""
    path = folder / STATE / STATE_FILE
    with files.report_damage(path):
        return from_dict(kind, read_state(folder).settings["train"], path)


def collect(
    state: State,
    ebm: EBM,
    optimizer: AcceleratedOptimizer,
    average: EMAModel,
    scaler: GradScaler | None,
    losses: Tensor,
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, and complete its state.

    They are "weights.<name>", "optimizer.<index of the weight>.<name>", "ema.<index>" (the
    averaged weights) and "pending" (``losses`` that are not logged yet).
    """
    state.ema_step = average.optimization_step
    state.scaler = None if scaler is None else scaler.state_dict()
    tensors = {f"weights.{name}": value.clone() for name, value in ebm.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = value
    tensors |= {f"ema.{i}": value for i, value in enumerate(average.shadow_params)}
    return {**tensors, "pending": losses}


def save(folder: Path, model: EBM, tensors: dict[str, Tensor], state: State, limit: int) -> None:
    """Write a checkpoint, then delete all but the last ``limit`` checkpoints of the run.

    Args:
        folder: ``checkpoint-N`` in the output folder.
        model: model with the averaged weights.
        tensors: from ``collect``.
        state: state of the run. If it has a best model, the weights are copied from the output
            folder.
    """
    output_dir, pending = folder.parent, folder.with_name(folder.name + PENDING)
    for incomplete in checkpoints(output_dir, PENDING):
        shutil.rmtree(incomplete)
    model.save_pretrained(pending)
    (pending / STATE).mkdir()
    files.write_tensors(pending / STATE / TENSORS_FILE, tensors)
    files.write_json(pending / STATE / STATE_FILE, asdict(state))
    if state.best is not None:
        files.replace_file(pending / STATE / BEST_FILE, (output_dir / WEIGHTS_FILE).read_bytes())
    os.replace(pending, folder)
    files.sync_folder(output_dir)
    for old in checkpoints(output_dir)[:-limit]:
        shutil.rmtree(old.rename(old.with_name(old.name + PENDING)))


def load(
    folder: Path,
    new: State,
    ebm: EBM,
    optimizer: AcceleratedOptimizer,
    average: EMAModel,
    scaler: GradScaler | None,
) -> tuple[State, list[Tensor]]:
    """Load the weights, the optimizer and the average of a checkpoint. Return the state of the
    run, with the settings of ``new``, and the losses that are not logged yet."""
    saved = read_state(folder)
    if saved.num_processes != new.num_processes:
        raise UserError(
            f"{folder} was trained by {saved.num_processes} processes, got {new.num_processes}. "
            f"Resume it with torchrun --nproc_per_node {saved.num_processes}."
        )
    with files.report_damage(folder / STATE):
        if any(saved.settings["ebm"][key] != new.settings["ebm"][key] for key in IMAGES):
            raise UserError(
                f"{folder} was trained on images of another shape, number of levels or classes. "
                "Resume with the images of its start."
            )
        tensors = files.read_tensors(folder / STATE / TENSORS_FILE)
        if scaler is not None:
            scaler.load_state_dict(saved.scaler)
        ebm.load_state_dict({name: tensors[f"weights.{name}"] for name in ebm.state_dict()})
        state = defaultdict(dict)
        for _, index, name in (key.split(".") for key in tensors if key.startswith("optimizer.")):
            state[int(index)][name] = tensors[f"optimizer.{index}.{name}"]
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        shadow = range(len(average.shadow_params))
        average.shadow_params = [tensors[f"ema.{i}"].to(ebm.device) for i in shadow]
        average.optimization_step = saved.ema_step
        pending = list(tensors["pending"].to(ebm.device))
    return replace(saved, settings=new.settings), pending


def restore_best(folder: Path, state: State, ebm: EBM, output_dir: Path) -> None:
    """Copy the best model of a checkpoint to the output folder of its run."""
    if state.best is not None:
        best = folder / STATE / BEST_FILE
        read_weights(best, ebm)  # raises an error for damaged weights
        ebm.save_config(output_dir)
        files.replace_file(output_dir / WEIGHTS_FILE, best.read_bytes())
