"""Training loop of models on a path, based on accelerate.

The batch of a step is a function of (seed, step), and the learning rate is a function of the step
and the progress of the run. The weights, their average, the optimizer state and the progress
therefore suffice to resume a run of given steps bit for bit.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.data.pictures import image_grid, save_image
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.objectives.regression import Objective
from ebm_app.training import checkpoint
from ebm_app.training.batches import Batches
from ebm_app.training.config import Run
from ebm_app.training.metrics import MetricsLog
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.schedule import WSD, decay_share, learning_rate, progress
from ebm_app.utils import PREVIEWS
from ebm_app.utils.errors import Interrupted, UserError
from ebm_app.utils.fields import finite_or_none, to_dict
from ebm_app.utils.processes import StopSignals, sharded
from ebm_app.utils.random import RowNoise, derive_seed
from ebm_app.utils.tensors import standard_error

#: Default number of validations and checkpoints per run
NUM_VALIDATIONS, NUM_CHECKPOINTS = 10, 20
#: Max fraction of the time spent on validations, and max fraction of a timed run spent on one
VALIDATIONS_SHARE, VALIDATION_SHARE = 0.1, 0.015
#: Seed of the noise of validations
VALIDATION_SEED = 0


class Loss(nn.Module):
    """Losses (B,) of a batch. accelerate wraps this module instead of the model, so that an
    objective may call the model several times in one forward pass."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self,
        u0: Tensor,
        u1: Tensor,
        t: Tensor,
        weight: Tensor,
        condition: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the losses (B,) for reference u0 and data u1 (B, C, H, W) in the path's space,
        times and importance weights (B,), augmentation conditions (B, dim) and labels (B,)."""
        path = self.model.path
        inputs = {} if labels is None else {"labels": labels}
        model = partial(self.model, condition=condition, **inputs)
        return self.objective(model, path, path.sample(u0, u1, t), weight)


class Trainer:
    """A training run. ``checkpoint.load`` resumes it, ``fit`` completes it.

    ``output_dir`` holds the model with the lowest validation loss so far. Bits per dim are not the
    criterion, because they also decrease if a density is not normalised. A validation uses the
    model's default estimator and ``second_estimator``; their difference shows how far the second
    is from a normalised density.

    Args:
        accelerator: accelerator of the run.
        ebm: the model, on its device.
        objective: its loss.
        batches: training batches.
        validation: validation images (N, C, H, W), uint8.
        config: settings of the run.
        second_estimator: name of the second estimator of a validation.

    Attributes:
        now: progress of the run.
        pending: losses that are not logged yet.
        saved: step of the last checkpoint written or read.
        start: (step, seconds) at which this process started or resumed the run.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        ebm: EBM,
        objective: Objective,
        batches: Batches,
        validation: Tensor,
        config: Run,
        second_estimator: str,
    ) -> None:
        from diffusers.training_utils import EMAModel  # slow to import

        self.accelerator, self.ebm, self.batches = accelerator, ebm, batches
        self.config = config
        self.second_estimator, self.output_dir = second_estimator, config.output_dir
        self.parameters = [weight for weight in ebm.parameters() if weight.requires_grad]
        rates = {"lr": config.learning_rate, "weight_decay": config.adam_weight_decay}
        optimizer = OPTIMIZERS[config.optimizer](self.parameters, **rates, fused=True)
        self.loss = Loss(ebm.model, objective)
        self.wrapped_loss, self.optimizer = accelerator.prepare(self.loss, optimizer)
        self.ema = EMAModel(self.parameters, decay=config.ema_decay, foreach=True)
        self.signals = StopSignals(accelerator)
        self.metrics = MetricsLog(accelerator, self.output_dir, config)
        self.validation = validation[: config.validation_images]
        settings = {"train": to_dict(config), "ebm": to_dict(ebm.config)}
        self.now = checkpoint.Progress(settings, batches.size)
        self.pending: list[Tensor] = []
        self.saved: int | None = None
        self.start = (0, 0.0)
        self.start_up = self.fit_began = 0.0

    def fit(self, start_up: float = 0.0) -> dict[str, Any]:
        """Train to the end of the run and return the metrics. On a stop signal, save a checkpoint
        and raise ``Interrupted``.

        Args:
            start_up: seconds already spent, which count towards the time of a run in minutes.
        """
        self.start_up, self.fit_began = start_up, time.perf_counter() - self.now.elapsed
        self.limit_validation(self.now.validation_images)
        self.update_progress()
        hidden = not self.accelerator.is_main_process
        bar = tqdm(
            total=self.expected_steps(),
            initial=self.now.step,
            disable=hidden,
            desc="train",
            mininterval=1,
        )
        with bar, self.signals:
            self.metrics.start(self.now.step)
            try:
                self.validate_if_due()  # the run may have been interrupted during a validation
                while self.now.progress < 1:
                    begin, cores = time.perf_counter(), time.process_time()
                    self.train_step()
                    self.now.step += 1
                    self.now.previous_progress = self.now.progress
                    self.update_progress()
                    losses = self.losses() if self.is_due(self.config.logging_steps) else None
                    self.count_time(begin, cores)
                    if losses is not None:
                        self.log(losses, bar)
                    bar.update()
                    self.validate_if_due()
                    if self.is_due(self.config.checkpointing_steps, NUM_CHECKPOINTS):
                        self.save()
                    self.signals.check()
            except Interrupted as stop:
                stop.saved = self.save()
                raise
        return {
            "steps": self.now.step,
            "decay_began": self.now.decay_began,
            "seconds": self.start_up + self.now.elapsed,
            "loss": self.now.loss,
            "bits_per_dim": self.now.best["validation_bits_per_dim"],
            "stderr": self.now.best.get("validation_stderr"),
            "images_per_second": self.speed(),
            "training_seconds": self.now.seconds,
            "core_seconds": self.now.core_seconds,
            "total_batch_size": self.now.total_batch_size,
        }

    def train_step(self) -> None:
        """Update the weights and their average by one step."""
        self.wrapped_loss.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.now.step, self.now.progress)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        blocks = torch.arange(self.batches.size).split(self.config.train_batch_size)
        own_blocks = blocks[rank::world]  # one block per accumulation step
        columns = self.batches.batch(self.now.step, torch.cat(own_blocks))
        # only dropout uses the global generator
        torch.manual_seed(derive_seed(self.config.seed, 3, self.now.step, rank))
        losses = []
        for index, block in enumerate(own_blocks):
            rows = slice(index * len(block), (index + 1) * len(block))
            is_last = index + 1 == len(own_blocks)  # the last one synchronises gradients
            with nullcontext() if is_last else self.accelerator.no_sync(self.wrapped_loss):
                loss = self.wrapped_loss(*(column[rows] for column in columns))
                self.accelerator.backward(loss.mean() / len(own_blocks))
            losses.append(loss.detach())
        self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.step(self.parameters)
        self.pending.append(torch.cat(losses).mean())

    def is_due(self, period: int | None, count: int = 1) -> bool:
        """Whether an action is due after this step: every ``period`` steps, or ``count`` times per
        run if ``period`` is None. Every action is due at the end of the run."""
        if self.now.progress >= 1:
            return True
        if period is not None:
            return self.now.step % period == 0
        return int(count * self.now.progress) > int(count * self.now.previous_progress)

    def update_progress(self) -> None:
        """Update the elapsed time and the progress. The clock of the main process counts, since
        processes that disagree would wait for each other."""
        now, config = self.now, self.config
        now.elapsed = time.perf_counter() - self.fit_began
        reserved = self.start_up + now.last_validation_seconds
        now.progress = progress(config, now.step, now.elapsed, reserved)
        if config.max_train_steps is None:
            now.progress = self.of_main(now.progress)
        if config.lr_scheduler == WSD and now.progress < 1 - decay_share(config):
            now.decay_began = None
        elif config.lr_scheduler == WSD and now.decay_began is None:
            now.decay_began = now.step

    def of_main(self, number: float) -> float:
        """Return the number that the main process passes."""
        if self.accelerator.num_processes == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.accelerator.device)
        return broadcast(value).item()

    def expected_steps(self) -> int | None:
        """Return the number of steps of the run at its present speed, or None at its start."""
        return round(self.now.step / self.now.progress) if self.now.step else None

    def count_time(self, begin: float, cores: float) -> None:
        """Add the time since ``begin``, and the CPU time since ``cores``, to those of the run."""
        self.now.seconds += time.perf_counter() - begin
        # all processes do the same amount of work
        self.now.core_seconds += (time.process_time() - cores) * self.accelerator.num_processes

    def losses(self) -> Tensor:
        """Return the losses of all steps since the last call, averaged over processes.
        Synchronises the device."""
        if not self.pending:
            return torch.zeros(0)
        losses = self.accelerator.reduce(torch.stack(self.pending), "mean").cpu()
        self.pending = []
        return losses

    def log(self, losses: Tensor, bar: tqdm) -> None:
        """Log the mean of the last losses, the learning rate and the speed."""
        self.check_finite(losses)
        self.now.loss = losses.mean().item()
        rate = learning_rate(self.config, self.now.step, self.now.progress)
        speeds = {"images_per_second": self.speed(), "core_seconds": self.now.core_seconds}
        self.metrics.write(self.now.step, loss=self.now.loss, learning_rate=rate, **speeds)
        text = f"loss {self.now.loss:.4f}, {self.speed():.0f} images/s"
        bar.set_postfix_str(text, refresh=False)
        bar.total = self.expected_steps()

    def speed(self) -> float:
        """Return the number of training images per second since the start or resume."""
        step, seconds = self.start
        images = (self.now.step - step) * self.now.total_batch_size
        return images / max(self.now.seconds - seconds, 1e-9)

    def check_finite(self, losses: Tensor, what: str = "loss") -> None:
        """Raise a UserError if a recent loss is not finite."""
        if not losses.isfinite().all():
            step = self.now.step - len(losses) + 1 + int((~losses.isfinite()).nonzero()[0])
            raise UserError(
                f"The {what} of step {step} is not finite. Use a smaller learning_rate or "
                "max_grad_norm, mixed_precision no, or a larger t_margin."
            )

    @contextmanager
    def averaged_weights(self) -> Iterator[EBM]:
        """Yield the model with the averaged weights, and restore its weights afterwards."""
        self.ema.store(self.parameters)
        self.ema.copy_to(self.parameters)
        try:
            yield self.ebm
        finally:
            self.ema.restore(self.parameters)

    def validate_if_due(self) -> None:
        """Validate the averaged weights if due, and save preview images and, if it is the best so
        far, the model."""
        if self.now.validated == self.now.step or not self.is_validation_due():
            return
        is_timed = self.config.max_train_steps is None and self.config.validation_steps is None
        if is_timed and not self.now.validation_images:
            self.limit_validation(self.affordable_images())
        is_main, begin = self.accelerator.is_main_process, time.perf_counter()
        with self.averaged_weights() as ebm:
            ebm.eval()
            metrics = self.validate()
            self.check_finite(torch.tensor([metrics["validation_loss"]]), "validation loss")
            self.now.validated = self.now.step
            self.metrics.write(self.now.step, **metrics)
            best = self.now.best
            if best is None or metrics["validation_loss"] < best["validation_loss"]:
                self.now.best = finite_or_none(metrics)
                if is_main:
                    ebm.save_pretrained(self.output_dir)
            if is_main and self.config.num_preview_images:
                images = ebm.sample(self.config.num_preview_images, seed=self.config.seed)
                name, grid = f"step-{self.now.step:06d}.png", image_grid(images)
                save_image(grid, self.output_dir / PREVIEWS / name)
                self.metrics.draw(self.now.step, PREVIEWS, grid)
        self.accelerator.wait_for_everyone()
        self.now.last_validation_seconds = self.of_main(time.perf_counter() - begin)
        self.now.validation_seconds += self.now.last_validation_seconds
        self.now.elapsed = time.perf_counter() - self.fit_began

    def is_validation_due(self) -> bool:
        """Whether a validation is due. Without ``validation_steps``, this validation and the last
        one must fit into ``VALIDATIONS_SHARE`` of the time, judged by the previous one. None
        interrupts the decay of a run in minutes, since a slow one would cut it short."""
        now, period = self.now, self.config.validation_steps
        if not self.is_due(period, NUM_VALIDATIONS):
            return False
        if period is not None or now.progress >= 1:
            return True
        if self.config.max_train_steps is None and now.decay_began is not None:
            return False
        seconds = now.validation_seconds + 2 * now.last_validation_seconds
        return seconds <= VALIDATIONS_SHARE * self.of_main(now.elapsed)

    def affordable_images(self) -> int:
        """Return the number of images of a validation that takes ``VALIDATION_SHARE`` of a run in
        minutes, at least 2. More images are measured until their number dominates the time."""
        num = 2
        budget = VALIDATION_SHARE * 60 * self.config.max_train_minutes
        while num < len(self.validation):
            seconds = self.of_main(self.seconds_of_validation(num))
            if seconds > budget / 4:
                return max(2, min(len(self.validation), int(num * budget / seconds)))
            num *= 4
        return len(self.validation)

    def limit_validation(self, num_images: int) -> None:
        """Validate on the first images only; 0 keeps all of them."""
        if num_images:
            self.validation = self.validation[:num_images]
        self.now.validation_images = num_images

    def seconds_of_validation(self, num_images: int) -> float:
        """Return the seconds of a validation on ``num_images`` images."""
        validation, self.validation = self.validation, self.validation[:num_images]
        self.ebm.eval()
        begin = time.perf_counter()
        self.validate()
        seconds = time.perf_counter() - begin
        self.validation = validation
        return seconds

    def validate(self) -> dict[str, float]:
        """Return the validation loss, bits per dim and their standard error over images. All
        validations use the same images and noise, also those of runs with other seeds."""
        metrics = {"validation_loss": self.validation_loss()}
        default = self.ebm.default_estimator
        metrics |= self.bits("validation", default)
        if (second := self.second_estimator) != default:
            metrics |= self.bits(f"validation_{second}", second)
        return metrics

    def bits(self, name: str, estimator: str) -> dict[str, float]:
        """Return the mean validation bits per dim and its standard error."""
        bits, *_ = bits_of_images(
            self.accelerator,
            self.ebm,
            self.validation,
            wrap=partial(self.watch, name=name),
            estimator=estimator,
            repeats=self.config.validation_repeats,
            seed=VALIDATION_SEED,
        )
        return {
            f"{name}_bits_per_dim": bits.mean().item(),
            f"{name}_stderr": standard_error(bits).item(),
        }

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss over validation images, in full precision and bypassing
        accelerate's wrapper."""
        num, repeats = len(self.validation), self.config.validation_repeats
        loss = partial(Loss.forward, self.loss)

        def losses_of(rows: Tensor) -> Tensor:
            levels = self.validation[rows].to(self.ebm.device)
            draws = [
                RowNoise(levels.device, VALIDATION_SEED, k, rows, num) for k in range(repeats)
            ]
            points = (self.batches.points(levels, noise) for noise in draws)
            return torch.stack([loss(*columns) for columns in points], 1)

        size, watch = self.config.train_batch_size, partial(self.watch, name="loss")
        return sharded(self.accelerator, num, repeats, size, losses_of, watch).mean().item()

    def watch(self, batches: Sequence[Tensor], name: str) -> Iterator[Tensor]:
        """Iterate over validation batches with a progress bar, and stop on a signal."""
        hidden = not self.accelerator.is_main_process
        for rows in tqdm(batches, desc=name, leave=False, disable=hidden):
            self.signals.check()
            yield rows

    def folder(self, step: int) -> Path:
        """Return the checkpoint folder of a step."""
        return self.output_dir / f"{checkpoint.PREFIX}{step}"

    def save(self) -> Path:
        """Write a checkpoint of the current step, if there is none, and return its folder."""
        folder = self.folder(self.now.step)
        if self.saved == self.now.step:
            return folder
        losses = self.losses()
        self.check_finite(losses)
        self.pending = list(losses.to(self.accelerator.device))
        if self.accelerator.is_main_process:
            tensors, trainer = checkpoint.collect(self, losses)
            limit = self.config.checkpoints_total_limit
            with self.averaged_weights() as ebm:
                checkpoint.save_checkpoint(folder, ebm, tensors, trainer, limit)
        self.accelerator.wait_for_everyone()
        self.saved = self.now.step
        return folder
