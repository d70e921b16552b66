"""Does an energy model in a flow's latent space train, and can its bits per dim be believed? One
run a variant; every checkpoint is scored by the integral of the time score, which is normalised
only as far as that is exact, and by the probability-flow ODE, which is always.

python evaluate/stability.py runs/copula --max_train_steps 3000
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tqdm.auto import tqdm

from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.numerics import standard_error
from ebm_app.runs.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.runs.processes import make_accelerator, shut_down
from ebm_app.studies.gains import HeldOut, figures_of, in_words
from ebm_app.studies.trainings import train_once
from ebm_app.training.checkpoint import checkpoints

SCRIPT = Path(__file__).resolve().parent.parent / "train" / "ebm.py"
PAPER = ["--prediction", "raw", "--time_input", "time", "--time_sampler", "importance"]
#: what the network reads, and how it is parametrised: flags of train/ebm.py
VARIANTS = {
    "u": ["--net_input", "u"],
    "x": ["--net_input", "x"],
    "u_paper": ["--net_input", "u", *PAPER],
    "x_paper": ["--net_input", "x", *PAPER],
}


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("flow", help="a folder made by train/flow.py")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), help="runs")
    add("--max_train_steps", type=int, default=3000, help="of every run")
    add("--num_scores", type=int, default=6, help="checkpoints scored of every run")
    add("--limit", type=int, default=100, help="held-out images scored")
    add("--pf_ode_steps", type=int, default=20, help="steps of the probability-flow ODE")
    add("--ebm_flags", default="", help="further flags of train/ebm.py, in one string")
    add("--output_dir", default="runs/stability", help="where runs, table and plot go")
    parser.add_common()
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train what is missing and score it; the figures, on the main process."""
    args = parse_args(argv)
    folder = Path(args.output_dir)
    record = RunRecord(folder / "stability.json", vars(args))
    accelerator = make_accelerator(device=resolve_device(args.device))
    flow = Flow.from_pretrained(args.flow, str(accelerator.device))
    levels = load_images(flow.config.dataset, args.data_root).test[: args.limit]
    noise = dequantisation_noise(1, levels, args.seed)
    held_out = HeldOut(levels, noise, len(levels), args.pf_ode_steps, args.seed)
    base = held_out.bits_of_flow(accelerator, flow)
    mean, deviation = base["ratio"].mean().item(), standard_error(base["ratio"]).item()
    print(f"the flow itself: {mean:.4f} +- {deviation:.4f} bits per dim")
    curves = {}
    for name in args.variants:
        train(args, folder / name, VARIANTS[name])
        curves[name] = []
        for step, run in tqdm(steps_of(folder / name), desc=name):
            ebm = EBM.from_pretrained(run, str(accelerator.device))
            row = figures_of(held_out.bits_of(accelerator, ebm), base)
            curves[name].append({"step": step, **row})
        for row in curves[name]:
            print(f"{name:8} {row['step']:6d}  {in_words(row, 'the flow')}", flush=True)
    figures = {"flow": mean, "curves": curves, "num_images": len(levels)}
    plot(curves, folder / "stability.png")
    record.write(figures)
    shut_down(accelerator)
    return figures


def train(args: Namespace, output_dir: Path, variant: Sequence[str]) -> None:
    """A run that keeps the checkpoints to be scored."""
    every = max(1, args.max_train_steps // args.num_scores)
    flags = ["--flow", args.flow, "--dataset", Flow.from_pretrained(args.flow).config.dataset]
    flags += ["--data_root", args.data_root, "--seed", str(args.seed), "--device", args.device]
    flags += ["--max_train_steps", str(args.max_train_steps)]
    flags += ["--checkpointing_steps", str(every), "--validation_steps", str(every)]
    flags += ["--checkpoints_total_limit", str(args.num_scores + 1), "--num_preview_images", "0"]
    train_once(SCRIPT, [*flags, *shlex.split(args.ebm_flags), *variant], output_dir)


def steps_of(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints of a run."""
    return [(int(folder.name.rpartition("-")[2]), folder) for folder in checkpoints(run)]


def plot(curves: dict[str, list[dict[str, float]]], target: Path) -> None:
    """The gain over the flow against the step, a panel an estimator."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    titles = {"ratio": "integral of the time score", "pf_ode": "probability-flow ODE"}
    for axes, (name, title) in zip(
        figure.subplots(1, 2, sharey=True), titles.items(), strict=True
    ):
        for variant, rows in curves.items():
            points = [(r["step"], r[f"{name}_gain"], r[f"{name}_gain_stderr"]) for r in rows]
            axes.errorbar(*zip(*points, strict=True), capsize=3, marker="o", label=variant)
        axes.axhline(0, color="black", lw=1, ls="--")
        axes.set(title=title, xlabel="step")
    figure.axes[0].set_ylabel("bits per dim under the flow's own")
    figure.axes[0].legend()
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    sys.exit(run_script(main))
