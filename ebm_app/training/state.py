"""What a run must remember to go on bit for bit, as tensors and JSON."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, JsonValue
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from ebm_app.io.errors import UserError
from ebm_app.io.fields import STRICT, Count, NonNegative, PositiveInt, listed, shortened
from ebm_app.io.records import from_dict
from ebm_app.models.config import FREE_ON_RESUME, changes_of
from ebm_app.training.checkpoint import STATE, TENSORS_FILE, TRAINER_FILE, load_state
from ebm_app.training.learning_rate import OPEN_ENDED, Horizon
from ebm_app.training.tasks import Task

if TYPE_CHECKING:
    from diffusers.training_utils import EMAModel

#: how a total batch is shared out may change: a step depends on the total alone
SHARING = {"train_batch_size", "gradient_accumulation_steps"}


#: of what a checkpoint holds beside its model
FORMAT_VERSION = 2
#: name of a configuration -> its fields
Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TrainerRecord:
    """The JSON part of a checkpoint.

    Args:
        step, loss, seconds, core_seconds: as in ``TrainingResult``; no loss before the first line
            of metrics.
        validated: step of the last validation. best: what it found for the model that is kept.
        origin: where the first weights came from, as the record of the run says it.
        ema_step, scaler: of the averaged weights, and of the scale of fp16's losses.
        settings, total_batch_size: what must be the same in a run that is resumed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    format_version: Literal[FORMAT_VERSION]
    step: Count
    loss: float | None
    seconds: NonNegative
    validated: Count
    best: dict[str, float | None] | None
    origin: dict[str, JsonValue]
    ema_step: Count
    scaler: dict[str, float] | None
    settings: Settings
    total_batch_size: PositiveInt
    core_seconds: NonNegative = 0.0


@dataclass
class TrainingState:
    """The parts of a run that change from step to step; ``buffers`` has the shapes of what the
    optimizer remembers of a weight, and ``scaler`` is that of fp16, or None."""

    task: Task
    optimizer: torch.optim.Optimizer
    buffers: Callable[[Tensor], dict[str, tuple[int, ...]]]
    scheduler: LRScheduler
    ema: "EMAModel"
    scaler: Any

    def collect(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, JSON data) of the parts."""
        parts = {
            "weights": {
                name: value.clone() for name, value in self.task.model.state_dict().items()
            },
            "optimizer": optimizer_tensors(self.optimizer),
            "ema": {str(i): value for i, value in enumerate(self.ema.shadow_params)},
        }
        tensors = {
            f"{part}.{name}": value
            for part, values in parts.items()
            for name, value in values.items()
        }
        return tensors, {
            "ema_step": self.ema.optimization_step,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load(
        self, folder: Path, settings: Settings, total_batch_size: int
    ) -> tuple[TrainerRecord, Tensor]:
        """Restore the parts from a checkpoint; the rest of it, with the losses since the last line
        of the metrics.

        Raises:
            UserError: where it is damaged, or was made with other ``settings``.
        """
        tensors, data = load_state(folder)
        trainer = from_dict(TrainerRecord, data, str(folder / STATE / TRAINER_FILE))
        check_same(trainer, settings, total_batch_size, folder)
        check_tensors(tensors, self._shapes(), folder)
        self.task.model.load_state_dict(split_prefix(tensors, "weights."))
        load_optimizer(self.optimizer, split_prefix(tensors, "optimizer."))
        shadow = split_prefix(tensors, "ema.")
        device = next(self.task.model.parameters()).device
        self.ema.shadow_params = [shadow[str(i)].to(device) for i in range(len(shadow))]
        self.ema.optimization_step = trainer.ema_step
        self._set_rate(trainer.step)
        if self.scaler is not None:
            if trainer.scaler is None or set(trainer.scaler) != set(self.scaler.state_dict()):
                raise UserError(f"{folder} holds no state of the scale of losses: start anew")
            self.scaler.load_state_dict(trainer.scaler)
        return trainer, tensors["pending"].to(device)

    def _set_rate(self, step: int) -> None:
        """The rate is a function of the step alone."""
        scheduler = self.scheduler
        pairs = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        rates = [rate * factor(step) for rate, factor in pairs]
        now = {"last_epoch": step, "_last_lr": rates}
        scheduler.load_state_dict({**scheduler.state_dict(), **now})
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of a checkpoint of this run."""
        shapes = {f"weights.{k}": tuple(v.shape) for k, v in self.task.model.state_dict().items()}
        for index, weight in enumerate(self.task.trained_parameters()):
            shapes[f"ema.{index}"] = tuple(weight.shape)
            for name, shape in self.buffers(weight).items():
                shapes[f"optimizer.{index}.{name}"] = shape
        return shapes

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


def check_tensors(
    tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], folder: Path
) -> None:
    """Raise a UserError unless the tensors are those of these shapes, finite, and the losses since
    the last line of the metrics."""
    where = folder / STATE / TENSORS_FILE
    expected = {*shapes, "pending"}
    if wrong := sorted(expected ^ set(tensors)):
        raise UserError(f"{where} holds other tensors than this run has: {shortened(wrong[0])}")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            found = tuple(tensors[name].shape)
            raise UserError(f"{where}: {shortened(name)} has the shape {found}, not {shape}")
    if broken := [name for name in tensors if not tensors[name].isfinite().all()]:
        raise UserError(f"{where}: {shortened(broken[0])} is not finite")


def check_same(
    trainer: TrainerRecord, settings: Settings, total_batch_size: int, folder: Path
) -> None:
    """Raise a UserError where settings that change the weights differ from a checkpoint's."""
    changes, free = [], FREE_ON_RESUME | SHARING
    horizons = (
        from_dict(Horizon, of.get("training", {}), str(folder))
        for of in (trainer.settings, settings)
    )
    if settings["training"]["lr_scheduler"] == OPEN_ENDED and all(
        trainer.step <= horizon.first_falling_step for horizon in horizons
    ):
        free |= {"max_train_steps", "lr_decay_steps"}
    for kind, own in settings.items():
        changes += changes_of(trainer.settings.get(kind, {}), own, free)
    before, now = trainer.total_batch_size, total_batch_size
    if before != now:
        changes.append(
            f"total batch (per process x accumulation x processes) was {before}, now {now}"
        )
    if changes:
        found = listed(changes, len(changes))
        raise UserError(f"{folder} was made with other settings: {found}")


def split_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer, flattened to "<index>.<name>"."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what ``optimizer_tensors`` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
