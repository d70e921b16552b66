"""A training run from its settings to its record, for the scripts and ``ebm_app.train``."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import broadcast_object_list

from ebm_app.config import EBMConfig, LoopConfig, TrainingConfig, changes_of
from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.flow import Flow, FlowConfig
from ebm_app.folders import check_weights, load_weights, read_config
from ebm_app.training import checkpoint
from ebm_app.training.metrics import read_metrics, training_figure
from ebm_app.training.options import RunOptions
from ebm_app.training.tasks import EBMTask, Task
from ebm_app.training.trainer import Trainer
from ebm_app.utils import METRICS_FILE, RUN_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import from_attributes, to_dict
from ebm_app.utils.files import report_damage, save_figure
from ebm_app.utils.output import Output, lock
from ebm_app.utils.processes import (
    describe_devices,
    make_accelerator,
    on_main,
    shut_down,
    stop_with_launcher,
)
from ebm_app.utils.registry import settings_of_each

#: the file by which a folder is trained in by one run at a time
LOCK = ".lock"
#: what may differ between the model and the run that starts from it
FREE = frozenset({"dataset", "num_nodes", "eps", "dequantisation", "calibration"})
#: and where the run adds an early network, which alone reads the labels
FREE_OF_EARLY = FREE | {"early", "num_classes"}


def train_ebm(
    data: ImageData,
    ebm_config: EBMConfig,
    config: TrainingConfig,
    options: RunOptions,
    flow: Flow | None = None,
) -> dict[str, Any] | None:
    """Train an energy-based model; the metrics of the run on the main process, else None."""
    build = partial(EBMTask, ebm_config=ebm_config, config=config, data=data, flow=flow)
    return launch(config, options, build)


def launch(
    config: LoopConfig, options: RunOptions, build: Callable[[Accelerator], Task]
) -> dict[str, Any] | None:
    """Train what ``build`` makes; the metrics of the run on the main process, else None."""
    ddp = settings_of_each({"ddp_args": DistributedDataParallelKwargs}, config.ddp_args)
    accelerator = make_accelerator(
        config.mixed_precision,
        options.device,
        project_dir=str(options.output_dir),
        log_with=None if config.report_to == "jsonl" else config.report_to,
        dynamo_backend=config.compile,
        kwargs_handlers=[DistributedDataParallelKwargs(**ddp["ddp_args"])],
    )
    # the configuration of ``accelerate`` may have chosen it
    config = replace(config, mixed_precision=accelerator.mixed_precision)
    stop_with_launcher()
    output, is_main = Output(options.output_dir / RUN_FILE), accelerator.is_main_process
    with on_main(accelerator, lambda: lock(output.folder / LOCK)) or nullcontext():
        task, trainer = build(accelerator), None
        if options.init_from and not options.resume_from_checkpoint:
            start_from(task.model, options.init_from)
        settings = {**task.settings(), "training": to_dict(config)}
        if task.trained_parameters():
            trainer = Trainer(accelerator, task, config, options.output_dir)
            if options.init_from:  # a resumed run says it by its checkpoint
                trainer.now.origin = {"init_from": {"model": options.init_from}}
        if trainer and options.resume_from_checkpoint:
            go_on(accelerator, trainer, options)
        else:
            folder, overwrite = options.output_dir, options.overwrite_output_dir
            on_main(accelerator, lambda: checkpoint.begin(folder, overwrite))
        if trainer:
            settings = {**trainer.now.settings, **trainer.now.origin}
        output.data["settings"] = settings
        if is_main:
            output.write(None)
        result = trainer.fit() if trainer else save_fitted(accelerator, task, output.folder)
        metrics = {
            "output_dir": str(output.folder),
            "device": describe_devices(accelerator),
            **result,
            **task.final_metrics(output.folder),
        }
        if is_main:
            output.save(metrics)
            if trainer and find_spec("matplotlib"):
                figure = training_figure(read_metrics(output.folder / METRICS_FILE))
                save_figure(figure, output.folder / "loss.png", dpi=120)
        prepared = (trainer.loss_module, trainer.optimizer) if trainer else ()
        shut_down(accelerator, *prepared)
    return metrics if is_main else None


def save_fitted(accelerator: Accelerator, task: Task, folder: Path) -> dict[str, Any]:
    """Write and score a model that has nothing left to learn."""
    if accelerator.is_main_process:
        task.model.save_pretrained(folder)
    accelerator.wait_for_everyone()
    found = task.validate()
    return {name: found[f"validation_{name}"] for name in ("bits_per_dim", "stderr")}


def go_on(accelerator: Accelerator, trainer: Trainer, options: RunOptions) -> None:
    """Resume from the checkpoint that is asked for."""
    folder, name = options.output_dir, options.resume_from_checkpoint
    found = on_main(accelerator, lambda: str(checkpoint.find_checkpoint(folder, name)))
    (found,) = broadcast_object_list([found])
    state, model = Path(found) / checkpoint.STATE, trainer.task.model
    written = read_config(model.config_class, Path(found), model.kind)
    if changes := changes_of(to_dict(written), to_dict(model.config), FREE):
        raise UserError(f"the model in {found} is another ({'; '.join(changes)})")
    if (best := state / checkpoint.BEST_FILE).exists():  # what does not load is never at the top
        check_weights(model, best)
        load_weights(model, best)
    with report_damage(state):
        trainer.resume(Path(found))
    if trainer.now.best is not None:
        on_main(accelerator, lambda: checkpoint.restore_best(folder, Path(found)))


def start_from(ebm: EBM, name_or_path: str | os.PathLike) -> None:
    """Give a model the weights of another one: a folder, a bundled name or a hub id."""
    given = EBM.from_pretrained(name_or_path)
    is_new = ebm.config.early is not None and given.config.early is None
    free = FREE_OF_EARLY if is_new else FREE
    if changes := changes_of(to_dict(given.config), to_dict(ebm.config), free):
        raise UserError(
            f"this run's model is not that of {name_or_path} ({'; '.join(changes)}): give its "
            "settings, or its run.json with --config"
        )
    space = ebm.space.state_dict()
    if not all(torch.equal(space[key].cpu(), v) for key, v in given.space.state_dict().items()):
        raise UserError(f"{name_or_path} lives in the latent space of another flow: give that one")
    if is_new:
        ebm.model.net.late.load_state_dict(given.model.net.state_dict())
    else:
        ebm.load_state_dict(given.state_dict())


def flow_of(name_or_path: str | os.PathLike | None) -> Flow | None:
    """The flow in whose latent space a model lives; None in the ambient space, and of no model.

    >>> flow_of("digits") is None, flow_of("mnist-latent").config.space
    (True, 'copula')
    """
    if name_or_path is None:
        return None
    ebm = EBM.from_pretrained(name_or_path)
    if ebm.config.space == EBMConfig.space:
        return None
    flow = Flow(from_attributes(FlowConfig, ebm.config))
    flow.space = ebm.space
    return flow
