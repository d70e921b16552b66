"""What the training scripts share: flags, and a run from its settings to its record."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ebm_app.data.images import ImageData, load_images
from ebm_app.models.config import LoopConfig
from ebm_app.runs.cli import Parser, RunRecord, resolve_device
from ebm_app.runs.files import METRICS_FILE
from ebm_app.runs.processes import check_processes, describe_devices, make_accelerator, shut_down
from ebm_app.training import checkpoint
from ebm_app.training.plots import plot_training
from ebm_app.training.tasks import Task
from ebm_app.training.trainer import Trainer


def add_run_flags(parser: Parser) -> None:
    """The flags of every training: what is trained on, where all goes, how it starts."""
    add = parser.add_argument
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--resolution", type=int, help="resize and crop the images of a folder to this size")
    add("--output_dir", help="where all goes; runs/<dataset>-<kind> if not given")
    add("--resume_from_checkpoint", help="latest, or a checkpoint's folder")
    add("--overwrite_output_dir", action="store_true", help="replace the run that is there")
    add("--expect_processes", type=int, default=1, help="fail if fewer processes have started")
    add("--device", default="auto", help="auto, cpu or cuda")


#: the names of these flags
RUN_FLAGS = frozenset(
    "dataset data_root download resolution output_dir resume_from_checkpoint overwrite_output_dir "
    "expect_processes device".split()
)


def images_of(args: Namespace) -> ImageData:
    """The data set that the flags name."""
    return load_images(args.dataset, args.data_root, args.download, args.resolution)


def output_dir_of(args: Namespace, kind: str) -> Path:
    """Where a run of this kind goes."""
    name = args.dataset.replace("folder:", "").strip("/").replace("/", "-")
    return Path(args.output_dir or f"runs/{name}-{kind}")


def launch(
    args: Namespace,
    config: LoopConfig,
    settings: dict[str, Any],
    output_dir: Path,
    build: Callable[[Accelerator], Task],
) -> dict[str, Any] | None:
    """Train what ``build`` makes; the figures of the run, on the main process.

    Args:
        settings: for the record of the run.
    """
    device = resolve_device(args.device)
    tracked = {} if config.report_to == "jsonl" else {"log_with": config.report_to}
    accelerator = make_accelerator(
        config.mixed_precision, device, project_dir=str(output_dir), **tracked
    )
    check_processes(accelerator.num_processes, args.expect_processes)
    task = build(accelerator)
    trainer = Trainer(accelerator, task, config, output_dir)
    prepare_output(accelerator, trainer, args, output_dir)
    run = RunRecord(output_dir / checkpoint.RUN_FILE, settings)
    if accelerator.is_main_process:
        run.write(None)
    result = trainer.fit()
    figures = {
        "output_dir": str(output_dir),
        "device": describe_devices(accelerator),
        **asdict(result),
        **task.final_figures(output_dir),
    }
    is_main = accelerator.is_main_process
    if is_main:
        plot_training(output_dir / METRICS_FILE, output_dir / "loss.png")
        run.write(figures)
    shut_down(accelerator, trainer.loss_module, trainer.optimizer)
    return figures if is_main else None


def prepare_output(
    accelerator: Accelerator, trainer: Trainer, args: Namespace, output_dir: Path
) -> None:
    """Resume, or make a clean folder."""
    if args.resume_from_checkpoint:
        trainer.resume(checkpoint.find_checkpoint(output_dir, args.resume_from_checkpoint))
    else:
        clean_output(accelerator, args, output_dir)


def clean_output(accelerator: Accelerator, args: Namespace, output_dir: Path) -> None:
    """An empty folder; the work of an earlier run is never overwritten unasked."""
    if args.overwrite_output_dir and accelerator.is_main_process:
        checkpoint.remove_run(output_dir)
    accelerator.wait_for_everyone()
    checkpoint.refuse_to_overwrite(output_dir)
    with checkpoint.explained_write(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
