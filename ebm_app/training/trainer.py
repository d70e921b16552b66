"""The training loop, on accelerate.

The batch of a step is a function of (seed, step) alone (``tasks``), and the learning rate one of
the step. A checkpoint of weights, averaged weights, optimizer and step is therefore enough to go
on bit for bit with as many processes and accumulation steps. With others, sums are rounded in
another order, and dropout draws other noise.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.io.errors import Interrupted, UserError
from ebm_app.io.interrupts import StopRequested, StopSignals
from ebm_app.io.records import to_dict
from ebm_app.io.writing import explained_write
from ebm_app.models.config import LoopConfig
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.training import checkpoint
from ebm_app.training.metrics import MetricsLog, finite
from ebm_app.training.optimizers import OPTIMIZERS, learning_rate
from ebm_app.training.state import FORMAT_VERSION, TrainingState
from ebm_app.training.tasks import Task

REMEDY = (
    "try a smaller --learning_rate or --max_grad_norm, --mixed_precision no, or a larger --eps"
)


@dataclass(frozen=True)
class TrainingResult:
    """What a finished run reports: the steps done, the last mean loss, the validation bits per
    dim of the model that is kept, the throughput since the last start, the seconds of all steps,
    those before a resume with them (validation is in neither), the seconds of CPU cores that they
    took in all processes, and the images of a step."""

    steps: int
    loss: float
    bits_per_dim: float
    images_per_second: float
    training_seconds: float
    core_seconds: float
    total_batch_size: int


class Trainer:
    """A run: prepares its parts, resumes if asked, then ``fit``.

    Args:
        accelerator: made by the caller. task: what is learned. config: how.
        output_dir: folder of everything that the run writes. At its top is always the model of
            least validation loss so far. Bits per dim are no criterion: they also fall where a
            density loses its normalisation.
    """

    def __init__(
        self, accelerator: Accelerator, task: Task, config: LoopConfig, output_dir: Path
    ) -> None:
        from diffusers.training_utils import EMAModel  # seconds to import, only for this

        self.accelerator, self.task, self.config = accelerator, task, config
        self.output_dir = output_dir
        self.parameters = task.trained_parameters()
        optimizer = OPTIMIZERS[config.optimizer](
            self.parameters,
            lr=config.learning_rate,
            weight_decay=config.adam_weight_decay,
            fused=True,
        )
        self.loss_module, self.optimizer = accelerator.prepare(task.loss_module, optimizer)
        self.ema = EMAModel(self.parameters, decay=config.ema_decay, foreach=True)
        self.state = TrainingState(task, optimizer, self.ema, accelerator.scaler)
        self.metrics = MetricsLog(accelerator, output_dir, config)
        self.signals = StopSignals(accelerator)
        self.step, self.last_loss = 0, math.nan
        self.seconds = self.core_seconds = 0.0
        self.start, self.validated = (self.step, self.seconds), 0
        self.best: dict[str, float] | None = None
        self.pending: list[Tensor] = []
        #: step and last validation of the checkpoint that was written or read last
        self.saved: tuple[int, int] | None = None
        self.origin: dict[str, Any] = {}

    def fit(self) -> TrainingResult:
        """Train to ``max_train_steps``.

        Raises:
            UserError: for a loss that is not finite, or a full disk. Interrupted: after a signal,
                once a checkpoint is saved.
        """
        total = self.config.max_train_steps
        hidden = not self.accelerator.is_main_process
        bar = tqdm(total=total, initial=self.step, disable=hidden, desc="train", mininterval=1)
        with bar, self.signals, explained_write(self.output_dir):
            self.metrics.start(self.step)
            try:
                self._validate()  # a run may have been stopped in the middle of it
                while self.step < total:
                    self._advance()
                    bar.update()
                    if not math.isnan(self.last_loss):
                        text = f"loss {self.last_loss:.4f}, {self._speed():.0f} images/s"
                        bar.set_postfix_str(text, refresh=False)
                    self._validate()
                    if self._due(self.config.checkpointing_steps):
                        self.save()
                    self.signals.check()
            except StopRequested as stop:
                raise Interrupted(stop.signum, self.save()) from None
        return TrainingResult(
            self.step,
            self.last_loss,
            self.best["validation_bits_per_dim"],
            self._speed(),
            self.seconds,
            self.core_seconds,
            self.task.total_batch_size,
        )

    def _advance(self) -> None:
        """One step, and its line of the metrics where this step writes one."""
        begin, cores = time.perf_counter(), time.process_time()
        self.train_step()
        self.step += 1
        losses = self._losses() if self._due(self.config.logging_steps) else None
        self.seconds += time.perf_counter() - begin
        # the processes share the work evenly
        self.core_seconds += (time.process_time() - cores) * self.accelerator.num_processes
        if losses is not None:
            self._log(losses)

    def save(self) -> Path:
        """Write a checkpoint of this step, unless it is there, and return its folder."""
        folder = self.output_dir / f"{checkpoint.PREFIX}{self.step}"
        if self.saved == (self.step, self.validated) and folder.is_dir():
            return folder
        losses = self._losses()
        self._check_finite(losses)
        self.pending = list(losses.to(self.accelerator.device))
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            trainer = {
                "format_version": FORMAT_VERSION,
                "step": self.step,
                "loss": None if math.isnan(self.last_loss) else self.last_loss,
                "seconds": self.seconds,
                "core_seconds": self.core_seconds,
                "validated": self.validated,
                "best": None if self.best is None else finite(self.best),
                "origin": self.origin,
                "settings": self._settings(),
                "total_batch_size": self.task.total_batch_size,
                "ema_step": self.ema.optimization_step,
                "scaler": None if scaler is None else scaler.state_dict(),
            }
            tensors = {**self.state.tensors(), "pending": losses}
            model, limit = self.task.model, self.config.checkpoints_total_limit
            with self.state.averaged_weights():
                checkpoint.save_checkpoint(
                    self.output_dir, self.step, model, tensors, trainer, limit
                )
        self.accelerator.wait_for_everyone()
        self.saved = self.step, self.validated
        return folder

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            UserError: where it is damaged, or its configuration or total batch differs.
        """
        found, losses = self.state.load(folder, self._settings(), self.task.total_batch_size)
        self.step, self.validated = found.step, found.validated
        self.seconds, self.core_seconds = found.seconds, found.core_seconds
        self.last_loss = math.nan if found.loss is None else found.loss
        self.best, self.origin = found.best, found.origin
        self.pending = list(losses)
        self.start = (self.step, self.seconds)
        if folder.parent == self.output_dir:
            self.saved = self.step, self.validated

    def train_step(self) -> None:
        """One update of the weights and of their average."""
        self.loss_module.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        whole = self.task.batch(self.step)
        # dropout is the only user of the global generator
        rank = self.accelerator.process_index
        torch.manual_seed(mixed_seed(self.config.seed, 3, self.step, rank))
        losses = []
        for rows, context in self._own_rows(whole):
            with context:
                loss = self.loss_module(*rows)
                self.accelerator.backward(loss.mean() / self.config.gradient_accumulation_steps)
            losses.append(loss.detach())
        self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.step(self.parameters)
        self.pending.append(torch.cat(losses).mean())

    def _own_rows(
        self, whole: tuple[Tensor, ...]
    ) -> Iterator[tuple[tuple[Tensor, ...], AbstractContextManager[Any]]]:
        """This process's parts of a batch; gradients are exchanged in the last one only."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        size, last = self.config.train_batch_size, self.config.gradient_accumulation_steps - 1
        for micro in range(last + 1):
            start = (micro * world + rank) * size
            alone = nullcontext() if micro == last else self.accelerator.no_sync(self.loss_module)
            yield tuple(part[start : start + size] for part in whole), alone

    def _due(self, period: int) -> bool:
        return self.step % period == 0 or self.step == self.config.max_train_steps

    def _speed(self) -> float:
        step, seconds = self.start
        return (self.step - step) * self.task.total_batch_size / max(self.seconds - seconds, 1e-9)

    def _losses(self) -> Tensor:
        """The losses of the steps since the last call, once the device has computed them."""
        if not self.pending:
            return torch.zeros(0)
        losses = self.accelerator.reduce(torch.stack(self.pending), "mean").cpu()
        self.pending = []
        return losses

    def _check_finite(self, losses: Tensor) -> None:
        if not losses.isfinite().all():
            bad = self.step - len(losses) + 1 + int((~losses.isfinite()).nonzero()[0])
            raise UserError(
                f"the loss of step {bad} is not finite: {REMEDY}; "
                f"{checkpoint.kept(self.output_dir)}"
            )

    def _log(self, losses: Tensor) -> None:
        self._check_finite(losses)
        self.last_loss = losses.mean().item()
        rate = learning_rate(self.config, self.step)
        speeds = {"images_per_second": self._speed(), "core_seconds": self.core_seconds}
        self.metrics.write(self.step, loss=self.last_loss, learning_rate=rate, **speeds)

    def _validate(self) -> None:
        """Validate the averaged weights, if this step asks for it and it is not done."""
        if not self._due(self.config.validation_steps) or self.validated == self.step:
            return
        with self.state.averaged_weights():
            found = self.task.validate(self.step, self.signals.check)
            if not math.isfinite(found["validation_loss"]):
                raise UserError(
                    f"the validation loss at step {self.step} is not finite: {REMEDY}; "
                    f"{checkpoint.kept(self.output_dir)}"
                )
            self.validated = self.step
            self.metrics.write(self.step, **found)
            if self.best is None or found["validation_loss"] < self.best["validation_loss"]:
                self.best = found
                if self.accelerator.is_main_process:
                    self.task.model.save_pretrained(self.output_dir)
        self.accelerator.wait_for_everyone()

    def _settings(self) -> dict[str, Any]:
        return {**self.task.settings(), "training": to_dict(self.config)}
