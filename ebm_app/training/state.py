"""Checkpointed state of a run, from which it is resumed bit for bit."""

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ebm_app.training.checkpoint import STATE, TENSORS_FILE, TRAINER_FILE
from ebm_app.training.plan import CONSTANT, FREE_ON_RESUME, changes_of
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import STRICT, Count, from_dict
from ebm_app.utils.files import read_json, read_tensors

if TYPE_CHECKING:
    from ebm_app.training.trainer import Trainer

#: Settings that split a batch. They may change on resume: a step only depends on the total.
SPLIT = {"train_batch_size", "gradient_accumulation_steps"}
#: Version of the ``state`` folder
FORMAT_VERSION = 2


@dataclass
class Progress:
    """Progress of a run, stored as JSON in a checkpoint.

    Args:
        settings, total_batch_size: must not change when the run is resumed.
        step: number of completed steps.
        loss: last logged loss, or None.
        seconds, core_seconds: wall-clock and CPU seconds of all training steps, without
            validation, summed over resumes; CPU seconds also over processes.
        validated: step of the last validation.
        best: metrics of the best model so far, or None.
        origin: source of the initial weights, and flags, as in the run record.
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
    validated: Count = 0
    best: dict[str, int | float | None] | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    ema_step: Count = 0
    scaler: dict[str, int | float] | None = None
    format_version: int = FORMAT_VERSION


def collect(trainer: "Trainer", losses: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON data of a checkpoint.

    The tensors are "weights.<name>", "optimizer.<index of the weight>.<name>", "ema.<index>" (the
    averaged weights) and "pending" (``losses`` that are not logged yet).
    """
    now, scaler = trainer.now, trainer.accelerator.scaler
    now.ema_step = trainer.ema.optimization_step
    now.scaler = None if scaler is None else scaler.state_dict()
    weights = trainer.task.model.state_dict()
    tensors = {f"weights.{name}": value.clone() for name, value in weights.items()}
    for index, values in trainer.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    tensors |= {f"ema.{i}": value for i, value in enumerate(trainer.ema.shadow_params)}
    return {**tensors, "pending": losses}, asdict(now)


def load(trainer: "Trainer", folder: Path) -> None:
    """Resume the run of a trainer from a checkpoint."""
    data, place = read_json(folder / STATE / TRAINER_FILE), str(folder / STATE / TRAINER_FILE)
    if data.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} was written by another version of ebm_app. Resume it with that version."
        )
    saved, model = from_dict(Progress, data, place), trainer.task.model
    check_same_run(saved, trainer.now, folder)
    tensors = read_tensors(folder / STATE / TENSORS_FILE)
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


def check_same_run(saved: Progress, now: Progress, folder: Path) -> None:
    """Raise a UserError if the images, or settings that affect the weights, differ from those of
    a checkpoint."""
    changes, free = [], FREE_ON_RESUME | SPLIT
    runs = [run.settings["training"] for run in (saved, now)]
    if runs[1]["lr_scheduler"] == CONSTANT and all(
        saved.step <= run["max_train_steps"] - run.get("lr_decay_steps", 0) for run in runs
    ):
        free |= {"max_train_steps", "lr_decay_steps"}
    for kind, current in now.settings.items():
        if kind != "data":
            changes += changes_of(saved.settings.get(kind, {}), current, free)
    if saved.total_batch_size != now.total_batch_size:
        changes.append(
            "total batch size (per process x accumulation x processes) was "
            f"{saved.total_batch_size}, now {now.total_batch_size}"
        )
    if changes:
        raise UserError(
            f"{folder} was trained with other settings: {'; '.join(changes)}. Resume with the "
            "settings in its run.json."
        )
    if saved.settings.get("data", now.settings["data"]) != now.settings["data"]:
        raise UserError(f"{folder} was trained on other images. Resume with the same images.")
