"""What a run must remember to go on bit for bit, as tensors and JSON."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ebm_app.config import FREE_ON_RESUME, changes_of
from ebm_app.training.checkpoint import STATE, TENSORS_FILE, TRAINER_FILE
from ebm_app.training.optimizers import OPEN_ENDED
from ebm_app.training.tasks import Task
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import STRICT, Count, from_dict
from ebm_app.utils.files import read_json, read_tensors

if TYPE_CHECKING:
    from diffusers.training_utils import EMAModel

#: how a total batch is shared out may change: a step depends on the total alone
SHARING = {"train_batch_size", "gradient_accumulation_steps"}
#: of what a checkpoint holds beside its model
FORMAT_VERSION = 2


@dataclass
class Progress:
    """How far a run is: the JSON part of a checkpoint.

    Args:
        settings, total_batch_size: what must be the same in a run that is resumed.
        step: steps done. loss: the last mean in the metrics, None before the first.
        seconds, core_seconds: of all steps (validation is in neither), those before a resume with
            them; the second of CPU cores, in all processes.
        validated: step of the last validation. best: what it found for the model that is kept.
        origin: where the first weights came from, as the record of the run says it.
        ema_step, scaler: of the averaged weights, and of the scale of fp16's losses.
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


@dataclass
class TrainingState:
    """The parts of a run that change from step to step; ``scaler`` is that of fp16, or None."""

    task: Task
    optimizer: torch.optim.Optimizer
    ema: "EMAModel"
    scaler: Any

    def collect(self, now: Progress, losses: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, JSON data) of a checkpoint: "weights.<name>", of the optimizer
        "optimizer.<index of the weight>.<name>", the averaged weights "ema.<index>", and the
        losses since the last line of the metrics."""
        now.ema_step = self.ema.optimization_step
        now.scaler = None if self.scaler is None else self.scaler.state_dict()
        weights = self.task.model.state_dict()
        found = {f"weights.{name}": value.clone() for name, value in weights.items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{key}": torch.as_tensor(v) for key, v in values.items()}
        found |= {f"ema.{i}": value for i, value in enumerate(self.ema.shadow_params)}
        return {**found, "pending": losses}, asdict(now)

    def load(self, folder: Path, now: Progress) -> tuple[Progress, Tensor]:
        """Restore the parts from a checkpoint; the progress of its run, and the losses since the
        last line of the metrics."""
        written = read_json(folder / STATE / TRAINER_FILE)
        if written.get("format_version") != FORMAT_VERSION:
            raise UserError(f"{folder} is of another version of ebm_app: go on with that one")
        before = from_dict(Progress, written, str(folder / STATE / TRAINER_FILE))
        check_same(before, now, folder)
        tensors = read_tensors(folder / STATE / TENSORS_FILE)
        if self.scaler is not None:
            self.scaler.load_state_dict(before.scaler)
        names, device = self.task.model.state_dict(), self.task.model.device
        self.task.model.load_state_dict({name: tensors[f"weights.{name}"] for name in names})
        state = defaultdict(dict)
        for _, index, name in (key.split(".") for key in tensors if key.startswith("optimizer.")):
            state[int(index)][name] = tensors[f"optimizer.{index}.{name}"]
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        shadow = range(len(self.ema.shadow_params))
        self.ema.shadow_params = [tensors[f"ema.{i}"].to(device) for i in shadow]
        self.ema.optimization_step = before.ema_step
        return replace(before, settings=now.settings), tensors["pending"].to(device)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Within it, the model holds the averaged weights."""
        parameters = self.task.trained_parameters()
        self.ema.store(parameters)
        self.ema.copy_to(parameters)
        try:
            yield
        finally:
            self.ema.restore(parameters)


def check_same(before: Progress, now: Progress, folder: Path) -> None:
    """Raise a UserError where settings that change the weights differ from a checkpoint's."""
    changes, free = [], FREE_ON_RESUME | SHARING
    runs = [of.settings["training"] for of in (before, now)]
    if runs[1]["lr_scheduler"] == OPEN_ENDED and all(
        before.step <= run["max_train_steps"] - run.get("lr_decay_steps", 0) for run in runs
    ):
        free |= {"max_train_steps", "lr_decay_steps"}
    earlier = {"data": now.settings["data"], **before.settings}  # which old checkpoints lack
    for kind, own in now.settings.items():
        changes += changes_of(earlier.get(kind, {}), own, free)
    if before.total_batch_size != now.total_batch_size:
        changes.append(
            "total batch (per process x accumulation x processes) was "
            f"{before.total_batch_size}, now {now.total_batch_size}"
        )
    if changes:
        raise UserError(f"{folder} was made with other settings: {'; '.join(changes)}")
