"""The training loop: ``fit`` is one function, read from top to bottom; ``validate`` and ``save``
follow it.

The batch of a step is a function of (seed, step), and the learning rate is a function of the step
and the progress of the run. The weights, their average, the optimizer state and the ``State``
therefore suffice to resume a run of given steps bit for bit.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from diffusers.training_utils import EMAModel
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.data.pictures import image_grid, save_image
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.objectives.regression import Objective
from ebm_app.training import checkpoint
from ebm_app.training.batches import Batches
from ebm_app.training.checkpoint import State
from ebm_app.training.metrics import MetricsLog, save_training_figure
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.schedule import (
    Clock,
    advance,
    is_due,
    is_save_due,
    is_validation_due,
    learning_rate,
    seconds_left,
)
from ebm_app.training.settings import Run
from ebm_app.utils import PREVIEWS
from ebm_app.utils.errors import Interrupted, UserError
from ebm_app.utils.fields import finite_or_none, to_dict
from ebm_app.utils.output import Output, warn_of_disagreements
from ebm_app.utils.processes import StopSignals, describe_devices, on_main, sharded
from ebm_app.utils.random import RowNoise, derive_seed
from ebm_app.utils.tensors import standard_error

#: Seed of the noise of validations
VALIDATION_SEED = 0


@dataclass
class Task:
    """What a run trains.

    A validation uses the model's default estimator and ``second_estimator``; their difference
    shows how far the second is from a normalised density.

    Args:
        ebm: the model, on its device. objective: its loss. batches: training batches.
        validation: validation images (N, C, H, W), uint8.
    """

    ebm: EBM
    objective: Objective
    batches: Batches
    validation: Tensor
    second_estimator: str


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


@dataclass
class Training:
    """A run in progress: what ``fit``, ``validate`` and ``save`` share.

    Args:
        pending: losses that are not logged yet.
        saved: step of the last checkpoint written or read.
    """

    accelerator: Accelerator
    config: Run
    task: Task
    loss: nn.Module
    optimizer: AcceleratedOptimizer
    average: EMAModel
    state: State
    clock: Clock
    metrics: MetricsLog
    signals: StopSignals
    pending: list[Tensor] = field(default_factory=list)
    saved: int | None = None


def fit(
    accelerator: Accelerator,
    config: Run,
    task: Task,
    output: Output,
    start: float,
    resumed: Path | None = None,
) -> dict[str, Any]:
    """Train a model to the end of its run, and return the figures of the run.

    The output folder holds the model with the lowest validation loss so far. Bits per dim are not
    the criterion, because they also decrease if a density is not normalised.

    Args:
        start: start of the process or call, a value of ``time.perf_counter``. A run in minutes
            begins there.
        resumed: checkpoint to resume from.

    Raises:
        Interrupted: on a stop signal, after saving a checkpoint.
    """
    run = start_run(accelerator, config, task, output, start, resumed)
    loss_of, optimizer, average = run.loss, run.optimizer, run.average
    state, clock, weights, batches = run.state, run.clock, trained(task.ebm), task.batches
    rank, world = accelerator.process_index, accelerator.num_processes
    first, seconds_before, speed = state.step, state.training_seconds, 0.0
    bar = progress_bar(run, "train", initial=first, total=config.max_train_steps)
    state.start_up_seconds += clock.lap()
    advance(config, state)
    with bar, run.signals:
        try:
            if is_validation_due(config, state):  # the run was interrupted during a validation
                validate(run)
            while state.step == 0 or state.progress < 1:
                cores = time.process_time()
                rate = learning_rate(config, state.step, state.progress)

                # batch: the rows of this process, a block for each accumulation step
                blocks = torch.arange(batches.size).split(config.train_batch_size)[rank::world]
                columns = batches.batch(state.step, torch.cat(blocks))
                # only dropout uses the global generator
                torch.manual_seed(derive_seed(config.seed, 3, state.step, rank))

                # loss and backward pass; the last block synchronises the gradients
                loss_of.train()
                losses = []
                for index, block in enumerate(blocks, 1):
                    rows = slice((index - 1) * len(block), index * len(block))
                    is_last = index == len(blocks)
                    with nullcontext() if is_last else accelerator.no_sync(loss_of):
                        loss = loss_of(*(column[rows] for column in columns))
                        accelerator.backward(loss.mean() / len(blocks))
                    losses.append(loss.detach())

                # clip, step, average
                accelerator.clip_grad_norm_(weights, config.max_grad_norm)
                set_rate(optimizer, rate)
                optimizer.step()
                optimizer.zero_grad()
                average.step(weights)

                state.step += 1
                run.pending.append(torch.cat(losses).mean())
                state.training_seconds += clock.lap()
                state.core_seconds += (time.process_time() - cores) * world
                advance(config, state)

                # log
                if is_due(state, config.logging_steps):
                    state.loss = take_losses(run).mean().item()
                    state.training_seconds += clock.lap()  # a GPU ends its steps here
                    seconds = max(state.training_seconds - seconds_before, 1e-9)
                    speed = (state.step - first) * batches.size / seconds
                    rate = learning_rate(config, state.step, state.progress)
                    run.metrics.log(state, learning_rate=rate, images_per_second=speed)
                    bar.total = round(state.step / state.progress)
                    text = f"loss {state.loss:.4f}, {speed:.0f} images/s"
                    bar.set_postfix_str(text, refresh=False)
                bar.update()

                # validate
                if is_validation_due(config, state):
                    validate(run)

                # save
                if is_save_due(config, state):
                    save(run)
                run.signals.check()
        except Interrupted as stop:
            stop.saved = save(run)
            raise
    return finish(run, speed)


def start_run(
    accelerator: Accelerator,
    config: Run,
    task: Task,
    output: Output,
    start: float,
    resumed: Path | None,
) -> Training:
    """Return a new or resumed run, and write its first record. A previous run in the output folder
    is deleted here, after the settings have been checked."""
    ebm, weights = task.ebm, trained(task.ebm)
    rates = {"lr": config.learning_rate, "weight_decay": config.adam_weight_decay}
    optimizer = OPTIMIZERS[config.optimizer](weights, **rates, fused=True)
    loss, optimizer = accelerator.prepare(Loss(ebm.model, task.objective), optimizer)
    average = EMAModel(weights, decay=config.ema_decay, foreach=True)
    state = State(
        {"train": to_dict(config), "ebm": to_dict(ebm.config)}, accelerator.num_processes
    )
    pending: list[Tensor] = []
    overwrite = config.overwrite_output_dir
    on_main(accelerator, partial(checkpoint.prepare_folder, output.folder, overwrite, resumed))
    if resumed is not None:
        scaler = accelerator.scaler
        state, pending = checkpoint.load(resumed, state, ebm, optimizer, average, scaler)
        on_main(accelerator, partial(checkpoint.restore_best, resumed, state, ebm, output.folder))
    clock = Clock(accelerator, state, start, is_shared=config.max_train_steps is None)
    metrics = MetricsLog(accelerator, output.folder, config)
    metrics.start(state.step)
    if accelerator.is_main_process:
        output.data["settings"] = state.settings
        output.write(None)
        if resumed is not None:
            print(f"Resumed at step {state.step} from {resumed}.", file=sys.stderr)
    is_own = resumed is not None and checkpoint.is_in(resumed, output.folder)
    return Training(
        accelerator,
        config,
        task,
        loss,
        optimizer,
        average,
        state,
        clock,
        metrics,
        StopSignals(accelerator),
        pending,
        state.step if is_own else None,
    )


def validate(run: Training) -> None:
    """Validate the averaged weights, and save preview images and, if it is the best so far, the
    model."""
    config, state, ebm, folder = run.config, run.state, run.task.ebm, run.config.output_dir
    is_main, begin = run.accelerator.is_main_process, state.seconds
    with averaged_weights(run):
        ebm.eval()
        if not state.validation_images:
            choose_validation(run)
        metrics = measure(run, state.validation_images)
        check_finite(state, torch.tensor([metrics["validation_loss"]]), "validation loss")
        run.metrics.write(state.step, **metrics)
        if state.best is None or metrics["validation_loss"] < state.best["validation_loss"]:
            state.best = finite_or_none(metrics)
            if is_main:
                ebm.save_pretrained(folder)
        if is_main and state.preview_images:
            grid = image_grid(ebm.sample(state.preview_images, seed=config.seed))
            save_image(grid, folder / PREVIEWS / f"step-{state.step:06d}.png")
            run.metrics.draw(state.step, PREVIEWS, grid)
    run.accelerator.wait_for_everyone()
    state.validated = state.step
    state.last_validation_seconds = run.clock.lap()
    state.validation_seconds += state.seconds - begin


def choose_validation(run: Training) -> None:
    """Choose the numbers of images and of previews of all validations of a run. In a run in
    minutes, each takes an eighth of the seconds that are left for anything but training."""
    config, state, ebm = run.config, run.state, run.task.ebm
    images = min(config.validation_images, len(run.task.validation))
    previews = config.num_preview_images
    if config.max_train_steps is None:
        budget = seconds_left(config, state) / 8
        images = max(2, affordable(run, partial(measure, run), 2, images, budget))
        draw = partial(ebm.sample, seed=config.seed)
        previews = affordable(run, draw, 1, previews, budget)
    state.validation_images, state.preview_images = images, previews


def affordable(
    run: Training, action: Callable[[int], object], num: int, most: int, budget: float
) -> int:
    """Return the number of images, at most ``most``, that an action processes in ``budget``
    seconds. It is measured for ``num`` images, then for more until they dominate the time."""
    if budget <= 0:
        return 0
    while num < most:
        run.clock.lap()
        action(num)
        seconds = run.clock.lap()
        if seconds > budget / 4:
            return min(most, int(num * budget / seconds))
        num *= 4
    return most


def measure(run: Training, num: int) -> dict[str, float]:
    """Return the validation loss, and bits per dim with their standard error, of the first ``num``
    validation images. All validations use the same noise, also those of runs with other seeds."""
    metrics = {"validation_loss": validation_loss(run, num), "validation_images": num}
    for estimator, name in prefixes(run.task).items():
        bits, *_ = bits_of_images(
            run.accelerator,
            run.task.ebm,
            run.task.validation[:num],
            wrap=partial(watch, run, name),
            estimator=estimator,
            repeats=run.config.validation_repeats,
            seed=VALIDATION_SEED,
        )
        metrics[f"{name}_bits_per_dim"] = bits.mean().item()
        metrics[f"{name}_stderr"] = standard_error(bits).item()
    return metrics


def prefixes(task: Task) -> dict[str, str]:
    """Return the prefix of the metrics of each estimator of a validation."""
    names = {task.ebm.default_estimator: "validation"}
    names.setdefault(task.second_estimator, f"validation_{task.second_estimator}")
    return names


@torch.no_grad()
def validation_loss(run: Training, num: int) -> float:
    """Return the mean loss over validation images, in full precision."""
    task, repeats = run.task, run.config.validation_repeats
    loss_of = Loss(task.ebm.model, task.objective)

    def losses_of(rows: Tensor) -> Tensor:
        levels = task.validation[rows].to(task.ebm.device)
        draws = [RowNoise(levels.device, VALIDATION_SEED, k, rows, num) for k in range(repeats)]
        points = (task.batches.points(levels, noise) for noise in draws)
        return torch.stack([loss_of(*columns) for columns in points], 1)

    size, wrap = run.config.train_batch_size, partial(watch, run, "validation loss")
    return sharded(run.accelerator, num, repeats, size, losses_of, wrap).mean().item()


def watch(run: Training, name: str, batches: Sequence[Tensor]) -> Iterator[Tensor]:
    """Iterate over validation batches with a progress bar, and stop on a signal."""
    for rows in progress_bar(run, name, batches, leave=False):
        run.signals.check()
        yield rows


def progress_bar(run: Training, name: str, *args: Any, **options: Any) -> tqdm:
    """Return a progress bar, which is hidden on other processes and if stderr is no terminal."""
    hidden = None if run.accelerator.is_main_process else True
    return tqdm(*args, desc=name, mininterval=1, disable=hidden, **options)


def save(run: Training) -> Path:
    """Write a checkpoint of the current step, if there is none, and return its folder."""
    state, accelerator = run.state, run.accelerator
    folder = run.config.output_dir / f"{checkpoint.PREFIX}{state.step}"
    if run.saved != state.step:
        losses = take_losses(run)
        run.pending = list(losses.to(accelerator.device))
        if accelerator.is_main_process:
            tensors = checkpoint.collect(
                state, run.task.ebm, run.optimizer, run.average, accelerator.scaler, losses
            )
            limit = run.config.checkpoints_total_limit
            with averaged_weights(run):
                checkpoint.save(folder, run.task.ebm, tensors, state, limit)
        accelerator.wait_for_everyone()
        run.saved, state.last_save_seconds = state.step, run.clock.lap()
    return folder


def finish(run: Training, speed: float) -> dict[str, Any]:
    """Plot the metrics of a completed run, and return its figures."""
    state, best = run.state, run.state.best
    if run.accelerator.is_main_process:
        bits = {name: best[f"{each}_bits_per_dim"] for name, each in prefixes(run.task).items()}
        warn_of_disagreements({name: value for name, value in bits.items() if value is not None})
        save_training_figure(run.config.output_dir)
    return {
        "output_dir": str(run.config.output_dir),
        "device": describe_devices(run.accelerator),
        "weights": sum(weight.numel() for weight in trained(run.task.ebm)),
        "steps": state.step,
        "decay_began": state.decay_began,
        "loss": state.loss,
        "bits_per_dim": best["validation_bits_per_dim"],
        "stderr": best["validation_stderr"],
        "validation_images": state.validation_images,
        "images_per_second": speed,
        "total_batch_size": run.task.batches.size,
        "seconds": state.seconds,
        "start_up_seconds": state.start_up_seconds,
        "training_seconds": state.training_seconds,
        "validation_seconds": state.validation_seconds,
        "core_seconds": state.core_seconds,
    }


def trained(ebm: EBM) -> list[nn.Parameter]:
    """Return the weights that a run trains."""
    return [weight for weight in ebm.parameters() if weight.requires_grad]


def set_rate(optimizer: AcceleratedOptimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


@contextmanager
def averaged_weights(run: Training) -> Iterator[None]:
    """Give the model its averaged weights until the context ends."""
    weights = trained(run.task.ebm)
    run.average.store(weights)
    run.average.copy_to(weights)
    try:
        yield
    finally:
        run.average.restore(weights)


def take_losses(run: Training) -> Tensor:
    """Return the losses that are not logged yet, averaged over processes, and forget them.
    Synchronises the device."""
    if not run.pending:
        return torch.zeros(0)
    losses = run.accelerator.reduce(torch.stack(run.pending), "mean").cpu()
    check_finite(run.state, losses)
    run.pending = []
    return losses


def check_finite(state: State, losses: Tensor, what: str = "loss") -> None:
    """Raise a UserError if a loss of the last steps is not finite."""
    if not losses.isfinite().all():
        step = state.step - len(losses) + 1 + int((~losses.isfinite()).nonzero()[0])
        raise UserError(
            f"The {what} of step {step} is not finite. Use a smaller learning_rate or "
            "max_grad_norm, mixed_precision no, or a larger t_margin."
        )
