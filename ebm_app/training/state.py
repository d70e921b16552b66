"""What a run must remember to go on bit for bit, as tensors and JSON."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from ebm_app.errors import UserError
from ebm_app.models.config import FREE_ON_RESUME, changes_of
from ebm_app.training.checkpoint import load_state
from ebm_app.training.learning_rate import OPEN_ENDED, first_falling_step
from ebm_app.training.tasks import Task

if TYPE_CHECKING:
    from diffusers.training_utils import EMAModel

#: how a total batch is shared out may change: a step depends on the total alone
SHARING = {"train_batch_size", "gradient_accumulation_steps"}


@dataclass
class TrainingState:
    """The parts of a run that change as it goes on; ``scaler`` is that of fp16, or None."""

    task: Task
    optimizer: torch.optim.Optimizer
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
            "scheduler": self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load(self, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
        """Restore the parts from a checkpoint, and return its JSON data.

        Raises:
            UserError: where it is damaged, or was made with other ``settings``.
        """
        tensors, trainer = load_state(folder)
        check_same(trainer, settings, folder)
        self.task.model.load_state_dict(split_prefix(tensors, "weights."))
        load_optimizer(self.optimizer, split_prefix(tensors, "optimizer."))
        shadow = split_prefix(tensors, "ema.")
        device = next(self.task.model.parameters()).device
        self.ema.shadow_params = [shadow[str(i)].to(device) for i in range(len(shadow))]
        self.ema.optimization_step = trainer["ema_step"]
        self.scheduler.load_state_dict(trainer["scheduler"])
        rates = self.scheduler.get_last_lr()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if self.scaler is not None:
            self.scaler.load_state_dict(trainer["scaler"])
        return trainer

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


def check_same(trainer: dict[str, Any], settings: dict[str, Any], folder: Path) -> None:
    """Raise a UserError where settings that change the weights differ from a checkpoint's."""
    changes, free = [], FREE_ON_RESUME | SHARING
    steps = trainer["step"]
    if settings["training"]["lr_scheduler"] == OPEN_ENDED and all(
        steps <= first_falling_step(training)
        for training in (trainer["training"], settings["training"])
    ):
        free |= {"max_train_steps", "lr_decay_steps"}
    for kind in (name for name, value in settings.items() if isinstance(value, dict)):
        changes += changes_of(trainer.get(kind, {}), settings[kind], free)
    before, now = trainer["total_batch_size"], settings["total_batch_size"]
    if before != now:
        changes.append(
            f"total batch (per process x accumulation x processes) was {before}, now {now}"
        )
    if changes:
        raise UserError(f"{folder} was made with other settings: {'; '.join(changes)}")


def split_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an Adam optimizer, flattened to "<index>.<name>"."""
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
