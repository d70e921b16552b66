"""Folder, processes and start of a training run."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import DynamoBackend, broadcast_object_list

from ebm_app.data.datasets import ImageData
from ebm_app.ebm import EBM
from ebm_app.pretrained import read_weights
from ebm_app.training import checkpoint
from ebm_app.training.config import Run, changes_of
from ebm_app.training.metrics import save_training_figure
from ebm_app.training.optimizers import OPTIMIZERS
from ebm_app.training.schedule import SCHEDULES, WSD
from ebm_app.training.trainer import Trainer
from ebm_app.utils import RUN_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict
from ebm_app.utils.files import report_damage
from ebm_app.utils.output import Output, lock, warn_of_disagreements
from ebm_app.utils.processes import (
    describe_devices,
    make_accelerator,
    on_main,
    shut_down,
    stop_with_launcher,
)
from ebm_app.utils.registry import choose

#: Lock file: one training run per output folder
LOCK = ".lock"
#: Backends of torch.compile that do not compile
UNCOMPILED = (DynamoBackend.NO, DynamoBackend.EAGER)
#: Settings that may differ between a run and the model it is initialised from
FREE = frozenset(
    {"dataset", "class_names", "num_nodes", "t_margin", "dequantisation", "calibration"}
)


def check_run(config: Run, data: ImageData) -> None:
    """Raise a UserError for invalid settings of the training loop, or fewer than 2 validation
    images."""
    choose("optimizer", config.optimizer, OPTIMIZERS)
    choose("lr_scheduler", config.lr_scheduler, SCHEDULES)
    trackers = ["jsonl", "all", *map(str, get_available_trackers())]
    choose("installed tracker", config.report_to, trackers)
    if config.max_train_steps is None and config.max_train_minutes is None:
        raise UserError(
            "Neither max_train_steps nor max_train_minutes is set. Set the length of the run."
        )
    if config.lr_decay_steps is not None and config.lr_scheduler != WSD:
        raise UserError(f"lr_decay_steps requires lr_scheduler {WSD}.")
    if config.lr_decay_steps is not None and config.max_train_steps is None:
        raise UserError(
            "lr_decay_steps requires max_train_steps. The decay of a run in minutes takes the "
            "last quarter of its time."
        )
    if (num := len(data.validation)) < 2:
        raise UserError(
            f"Expected at least 2 validation images for a standard error, got {num} in "
            f"{data.name}. Add validation images."
        )


@contextmanager
def open_run(config: Run) -> Iterator[tuple[Accelerator, Output]]:
    """Set up the processes and the output folder, which stays locked while the context is open."""
    accelerator = make_accelerator(
        config.mixed_precision,
        config.device,
        project_dir=str(config.output_dir),
        log_with=None if config.report_to == "jsonl" else config.report_to,
        dynamo_backend=config.compile,
    )
    num, expected = accelerator.num_processes, config.expect_processes
    if expected not in (None, num):
        raise UserError(
            f"Expected {expected} processes, got {num}. Use torchrun --nproc_per_node {expected}; "
            "on CPUs, accelerate launch starts only one process."
        )
    stop_with_launcher()
    output = Output(config.output_dir / RUN_FILE)
    with on_main(accelerator, lambda: lock(output.folder / LOCK)) or nullcontext():
        yield accelerator, output
        shut_down(accelerator)


def refuse_compiler(accelerator: Accelerator) -> None:
    """Raise a UserError if the training step is compiled."""
    if accelerator.state.dynamo_plugin.backend not in UNCOMPILED:
        raise UserError(
            "Energy networks and the objective tsm need second derivatives, which torch.compile "
            "does not support. Leave out --compile."
        )


def start_or_resume(
    accelerator: Accelerator, config: Run, make_trainer: Callable[[], Trainer]
) -> Trainer:
    """Return the trainer of a new or resumed run."""
    if config.resume_from_checkpoint:
        trainer = make_trainer()
        resume_run(trainer, config.resume_from_checkpoint)
        return trainer
    overwrite = config.overwrite_output_dir
    on_main(accelerator, partial(checkpoint.prepare_folder, config.output_dir, overwrite))
    return make_trainer()


def resume_run(trainer: Trainer, name: str) -> None:
    """Resume a run from a checkpoint, and save its best model in the output folder."""
    find = partial(checkpoint.find_checkpoint, trainer.output_dir, name)
    (folder,) = broadcast_object_list([on_main(trainer.accelerator, find)])
    ebm, best = trainer.ebm, folder / checkpoint.STATE / checkpoint.BEST_FILE
    with report_damage(folder / checkpoint.STATE):
        checkpoint.load(trainer, folder)
    if trainer.now.best is not None:
        trained = {name: value.clone() for name, value in ebm.state_dict().items()}
        ebm.load_state_dict(read_weights(best, ebm))
        on_main(trainer.accelerator, lambda: ebm.save_pretrained(trainer.output_dir))
        ebm.load_state_dict(trained)
    if trainer.accelerator.is_main_process:
        print(f"Resumed at step {trainer.now.step} from {folder}.", file=sys.stderr)


def fit_and_report(
    trainer: Trainer, data: ImageData, output: Output, began: float
) -> dict[str, Any]:
    """Train to the end of the run, which began at ``began`` of ``time.perf_counter()``, with a
    record of the run. Return the metrics."""
    is_main = trainer.accelerator.is_main_process
    output.data |= {"images": data.summary(), "settings": trainer.now.settings}
    if is_main:
        output.write(None)
        print(f"Training on {describe_devices(trainer.accelerator)}.", file=sys.stderr)
        print(data.describe(), file=sys.stderr)
    figures = trainer.fit(time.perf_counter() - began)
    if is_main:
        finite = {name: value for name, value in trainer.now.best.items() if value is not None}
        warn_of_disagreements(
            {name: value for name, value in finite.items() if name.endswith("bits_per_dim")}
        )
        save_training_figure(output.folder)
    start = {"output_dir": str(output.folder), "device": describe_devices(trainer.accelerator)}
    return start | figures


def init_from(ebm: EBM, name_or_path: str | os.PathLike) -> None:
    """Initialise a model with the weights of another model, by folder, bundled name or hub id."""
    source = EBM.from_pretrained(name_or_path)
    if changes := changes_of(to_dict(source.config), to_dict(ebm.config), FREE):
        raise UserError(
            f"The model {name_or_path} does not match this run: {'; '.join(changes)}. Use its "
            "settings, for example with --config and its run.json."
        )
    space = ebm.space.state_dict()
    if not all(torch.equal(space[key].cpu(), v) for key, v in source.space.state_dict().items()):
        raise UserError(
            f"The model {name_or_path} uses the latent space of another flow. Pass it as --flow."
        )
    ebm.load_state_dict(source.state_dict())
