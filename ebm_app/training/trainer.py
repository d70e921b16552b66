"""Training loop, based on accelerate.

The batch of a step is a function of (seed, step), and the learning rate is a function of the step.
The weights, their average, the optimizer state and the step therefore suffice to resume a run bit
for bit with the same number of processes and accumulation steps. With other numbers, rounding and
dropout noise differ.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.config import LoopConfig
from ebm_app.data.pictures import image_grid, save_image
from ebm_app.pretrained import PretrainedModel
from ebm_app.training import checkpoint
from ebm_app.training.metrics import MetricsLog
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.plan import complete, learning_rate
from ebm_app.training.tasks import Task
from ebm_app.utils import PREVIEWS
from ebm_app.utils.errors import Interrupted, UserError
from ebm_app.utils.fields import finite_or_none, to_dict
from ebm_app.utils.processes import StopSignals
from ebm_app.utils.random import derive_seed


class Trainer:
    """A training run. ``checkpoint.load`` resumes it, ``fit`` completes it.

    ``output_dir`` holds the model with the lowest validation loss so far. Bits per dim are not the
    criterion, because they also decrease if a density is not normalised.

    Attributes:
        now: progress of the run.
        pending: losses that are not logged yet.
        saved: step of the last checkpoint written or read.
        start: (step, seconds) at which this process started or resumed the run.
    """

    def __init__(self, task: Task, config: LoopConfig, output_dir: Path = Path()) -> None:
        from diffusers.training_utils import EMAModel  # slow to import

        config = complete(config, config.max_train_steps)
        self.task, self.config, self.output_dir = task, config, output_dir
        self.accelerator, self.parameters = task.accelerator, task.trained_parameters()
        rates = {"lr": config.learning_rate, "weight_decay": config.adam_weight_decay}
        optimizer = OPTIMIZERS[config.optimizer](self.parameters, **rates, fused=True)
        self.loss_module, self.optimizer = task.prepared_loss, self.accelerator.prepare(optimizer)
        self.ema = EMAModel(self.parameters, decay=config.ema_decay, foreach=True)
        self.signals = StopSignals(self.accelerator)
        self.metrics = MetricsLog(self.accelerator, output_dir, config)
        task.check = self.signals.check
        settings = {**task.settings(), "training": to_dict(config)}
        self.now = checkpoint.Progress(settings, task.total_batch_size)
        self.pending: list[Tensor] = []
        self.saved: int | None = None
        self.start = (0, 0.0)

    def fit(self) -> dict[str, Any]:
        """Train to the last step and return the metrics. On a stop signal, save a checkpoint and
        raise ``Interrupted``."""
        total = self.config.max_train_steps
        hidden = not self.accelerator.is_main_process
        bar = tqdm(total=total, initial=self.now.step, disable=hidden, desc="train", mininterval=1)
        with bar, self.signals:
            self.metrics.start(self.now.step)
            try:
                self._validate()  # the run may have been interrupted during a validation
                while self.now.step < total:
                    self._advance()
                    bar.update()
                    if self.now.loss is not None:
                        text = f"loss {self.now.loss:.4f}, {self._speed():.0f} images/s"
                        bar.set_postfix_str(text, refresh=False)
                    self._validate()
                    if self._is_due(self.config.checkpointing_steps):
                        self.save()
                    self.signals.check()
            except Interrupted as stop:
                stop.saved = self.save()
                raise
        return {
            "steps": self.now.step,
            "loss": self.now.loss,
            "bits_per_dim": self.now.best["validation_bits_per_dim"],
            "stderr": self.now.best.get("validation_stderr"),
            "images_per_second": self._speed(),
            "training_seconds": self.now.seconds,
            "core_seconds": self.now.core_seconds,
            "total_batch_size": self.now.total_batch_size,
        }

    def folder(self, step: int) -> Path:
        """Return the checkpoint folder of a step."""
        return self.output_dir / f"{checkpoint.PREFIX}{step}"

    def save(self) -> Path:
        """Write a checkpoint of the current step, if there is none, and return its folder."""
        folder = self.folder(self.now.step)
        if self.saved == self.now.step:
            return folder
        losses = self.losses()
        self._check_finite(losses)
        self.pending = list(losses.to(self.accelerator.device))
        if self.accelerator.is_main_process:
            tensors, trainer = checkpoint.collect(self, losses)
            limit = self.config.checkpoints_total_limit
            with self.averaged_weights() as model:
                checkpoint.save_checkpoint(folder, model, tensors, trainer, limit)
        self.accelerator.wait_for_everyone()
        self.saved = self.now.step
        return folder

    @contextmanager
    def averaged_weights(self) -> Iterator[PretrainedModel]:
        """Yield the model with the averaged weights, and restore its weights afterwards."""
        self.ema.store(self.parameters)
        self.ema.copy_to(self.parameters)
        try:
            yield self.task.model
        finally:
            self.ema.restore(self.parameters)

    def train_step(self) -> None:
        """Update the weights and their average by one step."""
        self.loss_module.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.now.step)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        blocks = torch.arange(self.task.total_batch_size).split(self.config.train_batch_size)
        own_blocks = blocks[rank::world]  # one block per accumulation step
        columns = self.task.batch(self.now.step, torch.cat(own_blocks))
        # only dropout uses the global generator
        torch.manual_seed(derive_seed(self.config.seed, 3, self.now.step, rank))
        losses = []
        for index, block in enumerate(own_blocks):
            rows = slice(index * len(block), (index + 1) * len(block))
            is_last = index + 1 == len(own_blocks)  # the last one synchronises gradients
            with nullcontext() if is_last else self.accelerator.no_sync(self.loss_module):
                loss = self.loss_module(*(column[rows] for column in columns))
                self.accelerator.backward(loss.mean() / len(own_blocks))
            losses.append(loss.detach())
        self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.step(self.parameters)
        self.pending.append(torch.cat(losses).mean())

    def _advance(self) -> None:
        """Train one step, and log metrics if due."""
        begin, cores = time.perf_counter(), time.process_time()
        self.train_step()
        self.now.step += 1
        losses = self.losses() if self._is_due(self.config.logging_steps) else None
        self.now.seconds += time.perf_counter() - begin
        # all processes do the same amount of work
        self.now.core_seconds += (time.process_time() - cores) * self.accelerator.num_processes
        if losses is not None:
            self._check_finite(losses)
            self.now.loss = losses.mean().item()
            rate = learning_rate(self.config, self.now.step)
            speeds = {"images_per_second": self._speed(), "core_seconds": self.now.core_seconds}
            self.metrics.write(self.now.step, loss=self.now.loss, learning_rate=rate, **speeds)

    def _validate(self) -> None:
        """Validate the averaged weights if due, and save preview images and, if it is the best so
        far, the model."""
        is_done = self.now.validated == self.now.step
        if is_done or not self._is_due(self.config.validation_steps):
            return
        is_main = self.accelerator.is_main_process
        with self.averaged_weights() as model, self.signals.checked_by_modules():
            model.eval()
            metrics = self.task.validate()
            self._check_finite(torch.tensor([metrics["validation_loss"]]), "validation loss")
            self.now.validated = self.now.step
            self.metrics.write(self.now.step, **metrics)
            best = self.now.best
            if best is None or metrics["validation_loss"] < best["validation_loss"]:
                self.now.best = finite_or_none(metrics)
                if is_main:
                    model.save_pretrained(self.output_dir)
            if is_main and self.config.num_preview_images:
                images = model.sample(self.config.num_preview_images, seed=self.config.seed)
                name, grid = f"step-{self.now.step:06d}.png", image_grid(images)
                save_image(grid, self.output_dir / PREVIEWS / name)
                self.metrics.draw(self.now.step, PREVIEWS, grid)
        self.accelerator.wait_for_everyone()

    def _is_due(self, period: int) -> bool:
        """Whether an action with this period is due; every action is due at the last step."""
        return self.now.step % period == 0 or self.now.step == self.config.max_train_steps

    def losses(self) -> Tensor:
        """Return the losses of all steps since the last call, averaged over processes.
        Synchronises the device."""
        if not self.pending:
            return torch.zeros(0)
        losses = self.accelerator.reduce(torch.stack(self.pending), "mean").cpu()
        self.pending = []
        return losses

    def _check_finite(self, losses: Tensor, what: str = "loss") -> None:
        """Raise a UserError if a recent loss is not finite."""
        if not losses.isfinite().all():
            step = self.now.step - len(losses) + 1 + int((~losses.isfinite()).nonzero()[0])
            raise UserError(
                f"The {what} of step {step} is not finite. Use a smaller --learning_rate or "
                "--max_grad_norm, --mixed_precision no, or a larger --eps."
            )

    def _speed(self) -> float:
        """Return the number of training images per second since the start or resume."""
        step, seconds = self.start
        images = (self.now.step - step) * self.now.total_batch_size
        return images / max(self.now.seconds - seconds, 1e-9)
