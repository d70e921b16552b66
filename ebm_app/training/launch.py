"""Training runs, from settings to run record, for the commands and ``ebm_app.train``."""

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from ebm_app.config import LoopConfig
from ebm_app.ebm import EBM
from ebm_app.flow import Flow, FlowConfig
from ebm_app.folders import check_weights, load_weights
from ebm_app.training import checkpoint
from ebm_app.training.metrics import save_training_figure
from ebm_app.training.plan import RunOptions, changes_of
from ebm_app.training.tasks import Task
from ebm_app.training.timing import plan_by_time
from ebm_app.training.trainer import Trainer
from ebm_app.utils import RUN_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import from_attributes, to_dict
from ebm_app.utils.files import report_damage
from ebm_app.utils.output import Output, lock, warn_of_disagreements
from ebm_app.utils.processes import (
    describe_devices,
    make_accelerator,
    on_main,
    shut_down,
    stop_with_launcher,
)

#: Lock file: one training run per output folder
LOCK = ".lock"
#: Settings that may differ between a run and the model it is initialised from
FREE = frozenset({"dataset", "class_names", "num_nodes", "eps", "dequantisation", "calibration"})
#: The same for a run that adds an early network; only that network uses the labels
FREE_WITH_EARLY = FREE | {"early", "num_classes"}


def launch(
    config: LoopConfig, options: RunOptions, build: Callable[..., Task]
) -> dict[str, Any] | None:
    """Build and train a task. Return the metrics on the main process, and None on others."""
    began = time.perf_counter()
    with set_up(config, options) as (accelerator, output):
        # accelerate's configuration file may set the precision
        config = replace(config, mixed_precision=accelerator.mixed_precision)
        task = build(accelerator, config=config)
        output.data["images"] = task.data.summary()
        if task.trained_parameters():
            result = train_task(task, options, output, began)
        else:
            result = score_fitted(task, options, output)
        metrics = {
            "output_dir": str(output.folder),
            "device": describe_devices(accelerator),
            **result,
            **task.final_metrics(output.folder),
        }
        if not accelerator.is_main_process:
            return None
        output.save(metrics)
        return metrics


def train_task(task: Task, options: RunOptions, output: Output, began: float) -> dict[str, Any]:
    """Start or resume a run, and train to its last step. Return the metrics of ``Trainer.fit``."""
    accelerator, config, folder = task.accelerator, task.config, output.folder
    if name := options.resume_from_checkpoint:
        find = partial(checkpoint.find_checkpoint, folder, name)
        (saved,) = broadcast_object_list([on_main(accelerator, find)])
        trainer = Trainer(task, config, folder)
        resume(trainer, saved)
    else:
        if options.init_from:
            init_from(task.model, options.init_from)
        overwrite = options.overwrite_output_dir
        on_main(accelerator, partial(checkpoint.prepare_folder, folder, overwrite))
        if config.max_train_steps is None:
            config = plan_by_time(task, config, began)
        trainer = Trainer(task, config, folder)
        if options.init_from:
            trainer.now.origin["init_from"] = {"model": options.init_from}
    if options.flags:
        trainer.now.origin.setdefault("flags", options.flags)
    output.data["settings"] = {**trainer.now.settings, **trainer.now.origin}
    if accelerator.is_main_process:
        output.write(None)
        print(f"Training on {describe_devices(accelerator)}.", file=sys.stderr)
        print(task.data.describe(), file=sys.stderr)
    result = trainer.fit()
    if accelerator.is_main_process:
        finite = {name: value for name, value in trainer.now.best.items() if value is not None}
        warn_of_disagreements(
            {name: value for name, value in finite.items() if name.endswith("bits_per_dim")}
        )
        save_training_figure(output.folder)
    return result


def score_fitted(task: Task, options: RunOptions, output: Output) -> dict[str, Any]:
    """Save and validate a flow fitted in closed form. Return its bits per dim."""
    overwrite = options.overwrite_output_dir
    on_main(task.accelerator, partial(checkpoint.prepare_folder, output.folder, overwrite))
    output.data["settings"] = {**task.settings(), "training": to_dict(task.config)}
    if task.accelerator.is_main_process:
        task.model.save_pretrained(output.folder)
    values = task.validate()
    return {name: values[f"validation_{name}"] for name in ("bits_per_dim", "stderr")}


@contextmanager
def set_up(config: LoopConfig, options: RunOptions) -> Iterator[tuple[Accelerator, Output]]:
    """Set up the processes and the output folder, which stays locked while the context is open."""
    accelerator = make_accelerator(
        config.mixed_precision,
        options.device,
        project_dir=str(options.output_dir),
        log_with=None if config.report_to == "jsonl" else config.report_to,
        dynamo_backend=config.compile,
    )
    num, expected = accelerator.num_processes, options.expect_processes
    if expected not in (None, num):
        raise UserError(
            f"Expected {expected} processes, got {num}. Use torchrun --nproc_per_node {expected}; "
            "on CPUs, accelerate launch starts only one process."
        )
    stop_with_launcher()
    output = Output(options.output_dir / RUN_FILE)
    with on_main(accelerator, lambda: lock(output.folder / LOCK)) or nullcontext():
        yield accelerator, output
        shut_down(accelerator)


def resume(trainer: Trainer, folder: Path) -> None:
    """Resume a run from a checkpoint, and save its best model in the output folder."""
    model, best = trainer.task.model, folder / checkpoint.STATE / checkpoint.BEST_FILE
    # the parameters of the space are not trained
    space = copy.deepcopy(model.space.state_dict()) if isinstance(model, EBM) else {}
    with report_damage(folder / checkpoint.STATE):
        checkpoint.load(trainer, folder)
    if not all(torch.equal(model.space.state_dict()[key], space[key]) for key in space):
        raise UserError(f"{folder} uses the latent space of another flow. Leave out --flow.")
    if trainer.now.best is not None:
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        check_weights(model, best)
        load_weights(model, best)
        on_main(trainer.accelerator, lambda: model.save_pretrained(trainer.output_dir))
        model.load_state_dict(trained)


def init_from(ebm: EBM, name_or_path: str | os.PathLike) -> None:
    """Initialise a model with the weights of another model, by folder, bundled name or hub id.

    If only ``ebm`` has an early network, the weights initialise its late network.
    """
    source = EBM.from_pretrained(name_or_path)
    adds_early = ebm.config.early is not None and source.config.early is None
    free = FREE_WITH_EARLY if adds_early else FREE
    if changes := changes_of(to_dict(source.config), to_dict(ebm.config), free):
        raise UserError(
            f"The model {name_or_path} does not match this run: {'; '.join(changes)}. Use its "
            "settings, for example with --config and its run.json."
        )
    space = ebm.space.state_dict()
    if not all(torch.equal(space[key].cpu(), v) for key, v in source.space.state_dict().items()):
        raise UserError(
            f"The model {name_or_path} uses the latent space of another flow. Pass it as --flow."
        )
    if adds_early:
        ebm.model.net.late.load_state_dict(source.model.net.state_dict())
    else:
        ebm.load_state_dict(source.state_dict())


def latent_flow(name_or_path: str | os.PathLike | None) -> Flow | None:
    """Return the flow of a model in a latent space, or None for a model of pixels or no model.

    >>> latent_flow("digits") is None, latent_flow("mnist-latent").config.space
    (True, 'copula')
    """
    if name_or_path is None:
        return None
    ebm = EBM.from_pretrained(name_or_path)
    if ebm.space.scale is not None:
        return None
    flow = Flow(from_attributes(FlowConfig, ebm.config))
    flow.space = ebm.space
    return flow
