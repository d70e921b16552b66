"""The training loop, on accelerate.

The batch of a step is a function of (seed, step) alone (``tasks``), and the learning rate one of
the step. A checkpoint of weights, averaged weights, optimizer and step is therefore enough to go
on bit for bit with as many processes and accumulation steps. With others, sums are rounded in
another order, and dropout draws other noise.
"""

import sys
import time
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.config import LoopConfig
from ebm_app.data.images import image_digest
from ebm_app.data.pictures import image_grid, save_image
from ebm_app.training import checkpoint
from ebm_app.training.metrics import MetricsLog
from ebm_app.training.optimizers import OPTIMIZERS, learning_rate
from ebm_app.training.state import Progress, TrainingState
from ebm_app.training.tasks import Task
from ebm_app.utils import PREVIEWS
from ebm_app.utils.errors import Interrupted, UserError
from ebm_app.utils.fields import finite_or_none, to_dict
from ebm_app.utils.processes import StopSignals
from ebm_app.utils.random import derive_seed

#: after which the first speed is told
TIMED_STEPS = 20
REMEDY = (
    "try a smaller --learning_rate or --max_grad_norm, --mixed_precision no, or a larger --eps"
)


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
        task.check = self.signals.check
        data = {"digest of the images": image_digest(task.levels, task.labels)}
        settings = {**task.settings(), "training": to_dict(config), "data": data}
        self.now = Progress(settings, task.total_batch_size)
        #: of the run's start or its resume
        self.start = (0, 0.0)
        self.pending: list[Tensor] = []
        #: step of the checkpoint that was written or read last
        self.saved: int | None = None

    def fit(self) -> dict[str, Any]:
        """Train to ``max_train_steps``."""
        total = self.config.max_train_steps
        hidden = not self.accelerator.is_main_process
        bar = tqdm(total=total, initial=self.now.step, disable=hidden, desc="train", mininterval=1)
        with bar, self.signals:
            self.metrics.start(self.now.step)
            self._say(self._size())
            try:
                self._validate()  # a run may have been stopped in the middle of it
                while self.now.step < total:
                    self._advance()
                    bar.update()
                    if self.now.step - self.start[0] == TIMED_STEPS:
                        self._say(self._end())
                    if self.now.loss is not None:
                        text = f"loss {self.now.loss:.4f}, {self._speed():.0f} images/s"
                        bar.set_postfix_str(text, refresh=False)
                    self._validate()
                    if self._due(self.config.checkpointing_steps):
                        self.save()
                    self.signals.check()
            except Interrupted as stop:
                stop.saved = self.save()
                raise
        return {
            "steps": self.now.step,
            "loss": self.now.loss,
            "bits_per_dim": self.now.best["validation_bits_per_dim"],
            "images_per_second": self._speed(),
            "training_seconds": self.now.seconds,
            "core_seconds": self.now.core_seconds,
            "total_batch_size": self.now.total_batch_size,
        }

    def _advance(self) -> None:
        """One step, and its line of the metrics where this step writes one."""
        begin, cores = time.perf_counter(), time.process_time()
        self.train_step()
        self.now.step += 1
        losses = self._losses() if self._due(self.config.logging_steps) else None
        self.now.seconds += time.perf_counter() - begin
        # the processes share the work evenly
        self.now.core_seconds += (time.process_time() - cores) * self.accelerator.num_processes
        if losses is not None:
            self._check_finite(losses)
            self.now.loss = losses.mean().item()
            rate = learning_rate(self.config, self.now.step)
            speeds = {"images_per_second": self._speed(), "core_seconds": self.now.core_seconds}
            self.metrics.write(self.now.step, loss=self.now.loss, learning_rate=rate, **speeds)

    def save(self) -> Path:
        """Write a checkpoint of this step, unless it is there, and return its folder."""
        folder = self._folder()
        if self.saved == self.now.step:
            return folder
        losses = self._losses()
        self._check_finite(losses)
        self.pending = list(losses.to(self.accelerator.device))
        if self.accelerator.is_main_process:
            tensors, trainer = self.state.collect(self.now, losses)
            model, limit = self.task.model, self.config.checkpoints_total_limit
            with self.state.averaged_weights():
                checkpoint.save_checkpoint(
                    self.output_dir, self.now.step, model, tensors, trainer, limit
                )
        self.accelerator.wait_for_everyone()
        self.saved = self.now.step
        return folder

    def _folder(self) -> Path:
        """The checkpoint of this step."""
        return self.output_dir / f"{checkpoint.PREFIX}{self.now.step}"

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.now, losses = self.state.load(folder, self.now)
        self.pending = list(losses)
        self.start = (self.now.step, self.now.seconds)
        if folder.resolve() == self._folder().resolve():
            self.saved = self.now.step

    def train_step(self) -> None:
        """One update of the weights and of their average."""
        self.loss_module.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.now.step)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        blocks = torch.arange(self.task.total_batch_size).split(self.config.train_batch_size)
        parts = blocks[rank::world]  # the rows of this process for each accumulation step
        own = self.task.batch(self.now.step, torch.cat(parts))
        # dropout is the only user of the global generator
        torch.manual_seed(derive_seed(self.config.seed, 3, self.now.step, rank))
        losses = []
        for index in range(len(parts)):
            rows = slice(index * len(parts[0]), (index + 1) * len(parts[0]))
            is_last = index + 1 == len(parts)  # in which gradients are exchanged
            alone = nullcontext() if is_last else self.accelerator.no_sync(self.loss_module)
            with alone:
                loss = self.loss_module(*(column[rows] for column in own))
                self.accelerator.backward(loss.mean() / len(parts))
            losses.append(loss.detach())
        self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.step(self.parameters)
        self.pending.append(torch.cat(losses).mean())

    def _due(self, period: int) -> bool:
        return self.now.step % period == 0 or self.now.step == self.config.max_train_steps

    def _say(self, text: str) -> None:
        """Print a line on stderr, above the bar."""
        if self.accelerator.is_main_process:
            tqdm.write(text, file=sys.stderr)

    def _size(self) -> str:
        """What the run is, in words."""
        weights = sum(weight.numel() for weight in self.parameters)
        return (
            f"{self.config.max_train_steps} steps of {self.now.total_batch_size} images, of which "
            f"{self.now.step} are done, by {weights / 1e6:.2f} million weights"
        )

    def _end(self) -> str:
        """When the run ends, in words."""
        left = (self.config.max_train_steps - self.now.step) * self.now.total_batch_size
        end = datetime.now() + timedelta(seconds=left / self._speed())
        return f"{self._speed():.0f} images/s: ends {end:%d %B %H:%M}, and later by validations"

    def _speed(self) -> float:
        step, seconds = self.start
        images = (self.now.step - step) * self.now.total_batch_size
        return images / max(self.now.seconds - seconds, 1e-9)

    def _losses(self) -> Tensor:
        """The losses of the steps since the last call, once the device has computed them."""
        if not self.pending:
            return torch.zeros(0)
        losses = self.accelerator.reduce(torch.stack(self.pending), "mean").cpu()
        self.pending = []
        return losses

    def _check_finite(self, losses: Tensor, what: str = "loss") -> None:
        """Raise a UserError unless the losses, of the last steps, are finite."""
        if not losses.isfinite().all():
            step = self.now.step - len(losses) + 1 + int((~losses.isfinite()).nonzero()[0])
            raise UserError(f"the {what} of step {step} is not finite: {REMEDY}")

    def _validate(self) -> None:
        """Validate the averaged weights, if this step asks for it and it is not done."""
        if not self._due(self.config.validation_steps) or self.now.validated == self.now.step:
            return
        with self.state.averaged_weights():
            self.task.model.eval()
            found = self.task.validate()
            self._check_finite(torch.tensor([found["validation_loss"]]), "validation loss")
            self.now.validated = self.now.step
            self.metrics.write(self.now.step, **found)
            best = self.now.best
            if best is None or found["validation_loss"] < best["validation_loss"]:
                self.now.best = finite_or_none(found)
                if self.accelerator.is_main_process:
                    self.task.model.save_pretrained(self.output_dir)
            if self.accelerator.is_main_process and self.config.num_preview_images:
                num, seed = self.config.num_preview_images, self.config.seed
                sheet = image_grid(self.task.model.sample(num, seed=seed))
                save_image(sheet, self.output_dir / PREVIEWS / f"step-{self.now.step:06d}.png")
        self.accelerator.wait_for_everyone()
