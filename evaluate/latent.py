"""Energy models in the latent spaces of flows and in pixel space, as the paper's table: a row for
every space and objective, trained by train/flow.py and train/ebm.py.

python evaluate/latent.py --dataset digits --max_train_steps 1500
python evaluate/latent.py --dataset mnist --spaces ambient gaussian --max_train_steps 10000

What is trained already is not trained again; a run that was cut off goes on.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ebm_app.data.images import ImageData, load_images
from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import read_json
from ebm_app.numerics import standard_error
from ebm_app.runs.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.runs.files import RUN_FILE
from ebm_app.studies.gains import HeldOut, figures_of
from ebm_app.studies.timing import seconds_in_turns
from ebm_app.studies.trainings import train_once
from ebm_app.training import settings
from ebm_app.training.tasks import EBMTask
from ebm_app.training.trainer import Trainer

SCRIPTS = Path(__file__).resolve().parent.parent / "train"
AMBIENT, FLOWS = "ambient", ["gaussian", "copula", "spline"]
#: the flags of each row; TSM trains no Stein head
OBJECTIVES = {
    "tsm": ["--stein_factor", "0"],
    "ctsm_v": ["--prediction", "normalised"],
    "ctsm_m": [],
}


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--spaces", nargs="+", default=FLOWS, choices=[AMBIENT, *FLOWS], help="kinds of rows")
    add("--objectives", nargs="+", default=list(OBJECTIVES), choices=list(OBJECTIVES), help="rows")
    add("--max_train_steps", type=int, default=1500, help="of every energy model")
    add("--flow_flags", default="", help="further flags of train/flow.py, in one string")
    add("--ebm_flags", default="", help="further flags of train/ebm.py, in one string")
    add("--limit", type=int, help="score the first test images only")
    add("--repeats", type=int, default=4, help="dequantisation draws of each image")
    add("--pf_ode_limit", type=int, default=50, help="images scored by the probability-flow ODE")
    add("--pf_ode_steps", type=int, default=12, help="its steps")
    add("--batch_size", type=int, default=128, help="images scored together")
    add("--rounds", type=int, default=10, help="training steps timed of each, in turns")
    add("--output_dir", default="runs/latent", help="where runs and table go")
    parser.add_common()
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train what is missing, score, and time; the table."""
    args = parse_args(argv)
    folder, device = Path(args.output_dir), resolve_device(args.device)
    data = load_images(args.dataset, args.data_root)
    record = RunRecord(folder / "latent.json", vars(args))
    for space in args.spaces:
        if space != AMBIENT:
            train_flow(args, folder / space / "flow", space)
        for objective in args.objectives:
            train_ebm(args, folder / space, objective)
    levels = data.test[: args.limit]
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    few = (args.pf_ode_limit, args.pf_ode_steps)
    held_out = HeldOut(levels, noise, *few, args.seed, args.batch_size)
    accelerator = Accelerator(cpu=device == "cpu")
    table = []
    for space in args.spaces:
        base, own, flow = None, {}, None
        if space != AMBIENT:
            flow = Flow.from_pretrained(folder / space / "flow", device)
            base = held_out.bits_of_flow(accelerator, flow)
            own["flow_bits"] = base["ratio"].mean().item()
            own["flow_bits_stderr"] = standard_error(base["ratio"]).item()
        seconds = step_seconds(args, data, flow, folder / space, device)
        for objective in args.objectives:
            ebm = EBM.from_pretrained(folder / space / objective, device)
            row = {"space": space, "objective": objective, "ms": 1e3 * seconds[objective]}
            table.append({**row, **own, **figures_of(held_out.bits_of(accelerator, ebm), base)})
    print_table(table)
    figures = {"table": table, "num_images": len(levels)}
    record.write(figures)
    return figures


def train_flow(args: Namespace, output_dir: Path, kind: str) -> None:
    """Fit a flow."""
    own = ["--flow", kind, *shlex.split(args.flow_flags)]
    train_once(SCRIPTS / "flow.py", [*own, *common(args)], output_dir)


def train_ebm(args: Namespace, folder: Path, objective: str) -> None:
    """Train an energy model in the latent space of the flow in ``folder``, if it is there."""
    own = ["--flow", str(folder / "flow")] if (folder / "flow").exists() else []
    own += ["--max_train_steps", str(args.max_train_steps)]
    own += ["--objective", objective, *OBJECTIVES[objective], *shlex.split(args.ebm_flags)]
    train_once(SCRIPTS / "ebm.py", [*own, *common(args)], folder / objective)


def common(args: Namespace) -> list[str]:
    """The flags of both scripts."""
    where = ["--dataset", args.dataset, "--data_root", args.data_root]
    return [*where, "--seed", str(args.seed), "--device", args.device]


def step_seconds(
    args: Namespace, data: ImageData, flow: Flow | None, folder: Path, device: str
) -> dict[str, float]:
    """Seconds of a training step by objective, in turns."""
    steps = {}
    for objective in args.objectives:
        base = read_json(folder / objective / RUN_FILE)["settings"]
        ebm_config, config = settings.resolve(data, {}, base, flow)
        accelerator = Accelerator(cpu=device == "cpu")
        task = EBMTask(accelerator, ebm_config, config, data, folder, flow)
        steps[objective] = Trainer(accelerator, task, config, folder).train_step
    return seconds_in_turns(steps, device, args.rounds)


#: heading -> figure of a row
COLUMNS = {
    "flow": "flow_bits",
    "ratio": "ratio",
    "less than flow": "ratio_gain",
    "pf_ode": "pf_ode",
    "less than flow*": "pf_ode_gain",
}


def print_table(table: Sequence[dict[str, Any]]) -> None:
    """A line a row; there is no flow to compare with in the ambient space."""
    heads = " ".join(f"{head:>18}" for head in COLUMNS)
    print(f"{'space':10} {'objective':10} {heads} {'ms':>8}")
    for row in table:
        figures = " ".join(f"{cell(row, name):>18}" for name in COLUMNS.values())
        print(f"{row['space']:10} {row['objective']:10} {figures} {row['ms']:8.1f}")
    print("* on the same few images, by the probability-flow ODE, which is always normalised")


def cell(row: dict[str, Any], name: str) -> str:
    """A figure with its standard error."""
    return f"{row[name]:.4f} +- {row[f'{name}_stderr']:.4f}" if name in row else "-"


if __name__ == "__main__":
    sys.exit(run_script(main))
