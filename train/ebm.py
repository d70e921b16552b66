"""Train an energy-based model of images.

accelerate launch train/ebm.py --dataset digits --output_dir runs/digits
"""

import json
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ebm_app import checkpoint, settings
from ebm_app.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.config import TrainingConfig, read_json
from ebm_app.data.images import load_images
from ebm_app.distributed import check_processes, make_accelerator, shut_down
from ebm_app.flow import Flow
from ebm_app.metrics import METRICS_FILE
from ebm_app.plots import plot_training
from ebm_app.tasks import EBMTask
from ebm_app.training import Trainer

OWN = (
    "flow dataset data_root download resolution output_dir config dry_run resume_from_checkpoint "
    "overwrite_output_dir expect_processes device"
).split()


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line; model and training settings are absent unless given."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--resolution", type=int, help="resize and crop the images of a folder to this size")
    add("--output_dir", help="where all goes; runs/<dataset>-<space> if not given")
    add("--flow", help="a folder made by train/flow.py: the path lives in its latent space")
    add("--config", help="a run.json to take settings from; flags override it")
    add("--dry_run", action="store_true", help="print the resolved settings and stop")
    add("--resume_from_checkpoint", help="latest, or a checkpoint's folder")
    add("--overwrite_output_dir", action="store_true", help="replace the run that is there")
    add("--expect_processes", type=int, default=1, help="fail if fewer processes have started")
    add("--device", default="auto", help="auto, cpu or cuda")
    model = parser.add_argument_group("model (the data set's preset where not given)")
    for name, kind, text in (
        ("space", str, "ambient, or with --flow its kind: gaussian, copula"),
        ("net_input", str, "in a latent space, what the network reads: u, or the image x of u"),
        ("path", str, "linear_vp, or vp: the paper's, with beta 0.1 to 20"),
        ("c", str, "second moment of the data that the path assumes: a number, or data"),
        ("dequantisation", str, "uniform, or truncated_normal: train on the centres of the cells"),
        ("eps", float, "margin left at t = 1; truncated_normal says where to stop"),
        ("num_nodes", int, "quadrature nodes of a likelihood"),
        ("time_input", str, "what the network sees: clock or time"),
        ("layers_per_block", int, "residual blocks of a level"),
        ("num_heads", int, "attention heads"),
        ("norm_num_groups", int, "groups of the group normalisations"),
        ("dropout", float, "dropout of the residual blocks"),
        ("t_scale", float, "factor of the time inside the embedding"),
    ):
        model.add_argument(f"--{name}", type=kind, default=SUPPRESS, help=text)
    for name, kind, text in (
        ("block_out_channels", int, "channels of every level"),
        ("attention_levels", int, "levels with attention"),
        ("input_frequencies", float, "Fourier features of the input, in cycles"),
    ):
        model.add_argument(f"--{name}", type=kind, nargs="*", default=SUPPRESS, help=text)
    parser.add_config(TrainingConfig)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train; the figures of the run, on the main process."""
    args = parse_args(argv)
    data = load_images(args.dataset, args.data_root, args.download, args.resolution)
    given = {key: value for key, value in vars(args).items() if key not in OWN}
    base = read_json(Path(args.config)).get("settings", {}) if args.config else None
    flow = Flow.from_pretrained(args.flow) if args.flow else None
    ebm_config, config = settings.resolve(data, given, base, flow)
    if args.dry_run:
        print(json.dumps(settings.record(ebm_config, config), indent=2))
        return None
    device = resolve_device(args.device)
    name = args.dataset.replace("folder:", "").strip("/").replace("/", "-")
    output_dir = Path(args.output_dir or f"runs/{name}-{ebm_config.space}")
    tracked = {} if config.report_to == "jsonl" else {"log_with": config.report_to}
    accelerator = make_accelerator(
        config.mixed_precision, device, project_dir=str(output_dir), **tracked
    )
    check_processes(accelerator.num_processes, args.expect_processes)
    task = EBMTask(accelerator, ebm_config, config, data, output_dir, flow)
    trainer = Trainer(accelerator, task, config, output_dir)
    prepare_output(accelerator, trainer, args, output_dir)
    run = RunRecord(output_dir / "run.json", settings.record(ebm_config, config))
    if accelerator.is_main_process:
        run.write(None)
    result = trainer.fit()
    figures = {"output_dir": str(output_dir), **asdict(result)}
    is_main = accelerator.is_main_process
    if is_main:
        plot_training(output_dir / METRICS_FILE, output_dir / "loss.png")
        run.write(figures)
    shut_down(accelerator, trainer.loss_module, trainer.optimizer)
    return figures if is_main else None


def prepare_output(
    accelerator: Accelerator, trainer: Trainer, args: Namespace, output_dir: Path
) -> None:
    """Resume, or make a clean folder; the work of an earlier run is never overwritten unasked."""
    if args.resume_from_checkpoint:
        trainer.resume(checkpoint.find_checkpoint(output_dir, args.resume_from_checkpoint))
        return
    if args.overwrite_output_dir and accelerator.is_main_process:
        checkpoint.remove_run(output_dir)
    accelerator.wait_for_everyone()
    checkpoint.refuse_to_overwrite(output_dir)
    with checkpoint.explained_write(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    sys.exit(run_script(main))
