"""A training run from its settings to its record, for the scripts and ``ebm_app.train``."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ebm_app.data.images import ImageData
from ebm_app.files import METRICS_FILE, RUN_FILE
from ebm_app.files.writing import explained_write
from ebm_app.flow import Flow
from ebm_app.models.config import EBMConfig, LoopConfig, TrainingConfig
from ebm_app.runs.cli import RunRecord, resolve_device
from ebm_app.runs.processes import check_processes, describe_devices, make_accelerator, shut_down
from ebm_app.training import checkpoint, settings
from ebm_app.training.fine_tuning import first_weights, start_from
from ebm_app.training.metrics import read_metrics
from ebm_app.training.plots import training_figure
from ebm_app.training.tasks import EBMTask, Task
from ebm_app.training.trainer import Trainer


@dataclass(frozen=True)
class RunOptions:
    """Where a run goes and how it starts.

    Args:
        output_dir: folder of everything that the run writes.
        device: "auto", "cpu" or "cuda".
        resume_from_checkpoint: "latest" or the folder of a checkpoint to go on from.
        overwrite_output_dir: whether a run that is already there is removed first.
        init_from: folder, bundled name or hub id of a model whose weights a new run starts with.
        expect_processes: the run fails if fewer processes have started.
    """

    output_dir: Path
    device: str = "auto"
    resume_from_checkpoint: str | None = None
    overwrite_output_dir: bool = False
    init_from: str | None = None
    expect_processes: int = 1


def train_ebm(
    data: ImageData,
    ebm_config: EBMConfig,
    config: TrainingConfig,
    options: RunOptions,
    flow: Flow | None = None,
) -> dict[str, Any] | None:
    """Train an energy-based model; the metrics of the run on the main process, else None.

    Args:
        data: images. ebm_config, config: as ``ebm_app.training.settings.resolve`` makes them.
        flow: in whose latent space the path lives; None for the ambient space.

    Raises:
        UserError: for settings, folders or processes that do not fit; see ``Trainer``.
    """

    def build(accelerator: Accelerator) -> EBMTask:
        task = EBMTask(accelerator, ebm_config, config, data, options.output_dir, flow)
        if options.init_from and not options.resume_from_checkpoint:
            start_from(task.model, options.init_from)
        return task

    record = settings.record(ebm_config, config)
    before = first_weights(options.init_from, options.resume_from_checkpoint, options.output_dir)
    return launch(config, record | before, options, build)


def launch(
    config: LoopConfig,
    recorded: dict[str, Any],
    options: RunOptions,
    build: Callable[[Accelerator], Task],
) -> dict[str, Any] | None:
    """Train what ``build`` makes; the metrics of the run on the main process, else None.

    Args:
        recorded: the settings that the record of the run holds.
    """
    folder = options.output_dir
    device = resolve_device(options.device)
    tracked = {} if config.report_to == "jsonl" else {"log_with": config.report_to}
    accelerator = make_accelerator(
        config.mixed_precision, device, project_dir=str(folder), **tracked
    )
    check_processes(accelerator.num_processes, options.expect_processes)
    task = build(accelerator)
    trainer = Trainer(accelerator, task, config, folder)
    if options.resume_from_checkpoint:
        trainer.resume(checkpoint.find_checkpoint(folder, options.resume_from_checkpoint))
    else:
        clean_output(accelerator, options)
    run = RunRecord(folder / RUN_FILE, recorded)
    if accelerator.is_main_process:
        run.write(None)
    result = trainer.fit()
    metrics = {
        "output_dir": str(folder),
        "device": describe_devices(accelerator),
        **asdict(result),
        **task.final_metrics(folder),
    }
    is_main = accelerator.is_main_process
    if is_main:
        training_figure(read_metrics(folder / METRICS_FILE)).savefig(folder / "loss.png", dpi=120)
        run.write(metrics)
    shut_down(accelerator, trainer.loss_module, trainer.optimizer)
    return metrics if is_main else None


def clean_output(accelerator: Accelerator, options: RunOptions) -> None:
    """Make the folder of a new run.

    Raises:
        UserError: where it holds a run that is not to be overwritten.
    """
    if options.overwrite_output_dir and accelerator.is_main_process:
        checkpoint.remove_run(options.output_dir)
    accelerator.wait_for_everyone()
    checkpoint.refuse_to_overwrite(options.output_dir)
    with explained_write(options.output_dir):
        options.output_dir.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
