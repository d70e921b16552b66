"""Training by several processes: images a second measured on this machine, and an estimate for
many devices from the time of a step and the size of its gradients.

python evaluate/scaling.py --dataset digits --processes 1 2
"""

import os
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebm_app.errors import UserError
from ebm_app.models.config import read_json
from ebm_app.models.folders import WEIGHTS_FILE, read_tensors
from ebm_app.runs.cli import Parser, RunRecord, run_script
from ebm_app.runs.files import RUN_FILE
from ebm_app.studies.scaling import efficiency, exchange_seconds

SCRIPT = Path(__file__).resolve().parent.parent / "train" / "ebm.py"
#: devices of a host and hosts of the estimate
LAYOUTS = ((1, 1), (8, 1), (8, 8))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train a few steps with every number of processes; what was measured and what is
    estimated."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes to measure")
    add("--train_batch_size", type=int, default=64, help="images of a process in a step")
    add("--max_train_steps", type=int, default=30, help="steps of each measurement")
    add("--ebm_flags", default="", help="further flags of train/ebm.py, in one string")
    add("--step_ms", type=float, nargs="*", default=[], help="steps to estimate with, besides")
    add("--output_dir", default="runs/scaling", help="where the record goes")
    parser.add_common()
    args = parser.parse_args(argv)
    if min(args.processes) < 1:
        raise UserError("a run has at least one process: give --processes of at least 1")
    record = RunRecord(Path(args.output_dir) / "scaling.json", vars(args))
    measured = {num: measure(args, num) for num in args.processes}
    first = next(iter(measured))
    base = measured[first]["images_per_second"] / first
    for num, row in measured.items():
        row["efficiency"] = row["images_per_second"] / (num * base)
        print(
            f"{num} processes: {row['images_per_second']:.1f} images/s, "
            f"{100 * row['efficiency']:.0f} percent of {num} times one"
        )
    gradients = 4 * measured[first]["weights"]
    own = first * args.train_batch_size / measured[first]["images_per_second"]
    estimates = [
        estimate(args.train_batch_size, seconds, gradients, *layout)
        for seconds in (own, *(ms / 1e3 for ms in args.step_ms))
        for layout in LAYOUTS
    ]
    print(f"estimates for gradients of {gradients / 1e6:.2f} MB, nothing overlapping:")
    for row in estimates:
        print(
            f"step {1e3 * row['step']:8.1f} ms, {row['hosts']} x {row['per_host']} devices: "
            f"exchange {1e3 * row['exchange']:.3f} ms, {100 * row['efficiency']:.1f} percent, "
            f"{row['images_per_second']:,.0f} images/s"
        )
    figures = {"measured": measured, "gradient_bytes": gradients, "estimates": estimates}
    record.write(figures)
    return figures


def measure(args: Namespace, num: int) -> dict[str, float]:
    """Images a second and weights of a short run with so many processes, a thread each."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num)]
    flags = ["--dataset", args.dataset, "--data_root", args.data_root, "--seed", str(args.seed)]
    flags += ["--device", args.device, "--max_train_steps", str(args.max_train_steps)]
    flags += ["--train_batch_size", str(args.train_batch_size), "--expect_processes", str(num)]
    flags += ["--validation_images", "2", "--validation_repeats", "1", "--num_preview_images", "0"]
    with TemporaryDirectory() as folder:
        own = [*shlex.split(args.ebm_flags), "--output_dir", folder, "--overwrite_output_dir"]
        command = [sys.executable, *launcher, str(SCRIPT), *flags, *own]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        if subprocess.run(command, stdout=subprocess.DEVNULL, env=environment).returncode:
            raise UserError(f"training with {num} processes failed: see its message above")
        speed = read_json(Path(folder) / RUN_FILE)["figures"]["images_per_second"]
        weights = read_tensors(Path(folder) / WEIGHTS_FILE).values()
        return {"images_per_second": speed, "weights": sum(w.numel() for w in weights)}


def estimate(
    batch_size: int, step: float, gradients: int, per_host: int, hosts: int
) -> dict[str, float]:
    """What so many devices come to."""
    exchange = exchange_seconds(gradients, per_host, hosts)
    return {
        "step": step,
        "per_host": per_host,
        "hosts": hosts,
        "exchange": exchange,
        "efficiency": efficiency(step, exchange),
        "images_per_second": per_host * hosts * batch_size / (step + exchange),
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
