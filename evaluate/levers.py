"""What each setting of a training is worth: one change at a time, all else as in the preset.

python evaluate/levers.py --dataset digits --max_train_steps 1000

Every variant is a run of train/ebm.py that is made once, scored at the preset's eps on the same
held-out images and draws.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import EBMConfig, read_json
from ebm_app.registry import choose
from ebm_app.runs.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.runs.files import RUN_FILE, explained_write
from ebm_app.runs.processes import make_accelerator, shut_down
from ebm_app.studies.gains import Bits, HeldOut, figures_of, in_words
from ebm_app.studies.likelihood_speed import fixed_nodes, reference
from ebm_app.studies.trainings import train_once
from ebm_app.training.settings import resolve

SCRIPT = Path(__file__).resolve().parent.parent / "train" / "ebm.py"
BASE = "base"
#: figure of a row -> heading
COLUMNS = {
    "ratio": "`ratio`",
    "ratio_gain": "less than the base",
    "pf_ode": "`pf_ode`",
    "pf_ode_gain": "less than the base",
}


def variants(config: EBMConfig) -> dict[str, list[str]]:
    """Flags of train/ebm.py by the name of the change."""
    channels, waves = config.net.block_out_channels, config.input_frequencies
    return {
        BASE: [],
        "uniform times": ["--time_sampler", "uniform"],
        "the paper's sampler": ["--time_sampler", "importance"],
        "plain time": ["--time_input", "time"],
        "CTSM-v of moments": ["--objective", "ctsm_v"],
        "CTSM-v, no moments": ["--prediction", "normalised"],
        "the same, raw": ["--prediction", "raw"],
        "waves of the bins only": ["--input_frequencies", *(f"{f:g}" for f in waves[-2:])],
        "no waves": ["--input_frequencies"],
        "fast time": ["--t_scale", f"{4 * config.net.t_scale:g}"],
        "half the channels": ["--block_out_channels", *(f"{n // 2}" for n in channels)],
        "twice the channels": ["--block_out_channels", *(f"{2 * n}" for n in channels)],
        "no average": ["--ema_decay", "0"],
        "ten times eps": ["--eps", f"{10 * config.eps:g}"],
        "a tenth of eps": ["--eps", f"{config.eps / 10:g}"],
        "no Stein head": ["--stein_factor", "0"],
        "bfloat16": ["--mixed_precision", "bf16"],
    }


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--variants", nargs="+", default=[], help="changes to try; all if not given")
    add("--max_train_steps", type=int, default=1000, help="of every run")
    add("--ebm_flags", default="", help="further flags of train/ebm.py, in one string")
    add("--limit", type=int, help="score the first test images only")
    add("--repeats", type=int, default=1, help="dequantisation draws of each image")
    add("--pf_ode_limit", type=int, default=50, help="images scored by the probability-flow ODE")
    add("--pf_ode_steps", type=int, default=12, help="its steps")
    add("--output_dir", default="runs/levers", help="where runs and table go")
    parser.add_common()
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train what is missing and score it; the table, on the main process."""
    args = parse_args(argv)
    folder = Path(args.output_dir)
    record = RunRecord(folder / "levers.json", vars(args))
    data = load_images(args.dataset, args.data_root)
    config, _ = resolve(data, {})
    known = variants(config)
    names = [choose("variant", name, known) for name in args.variants or known]
    accelerator = make_accelerator(device=resolve_device(args.device))
    levels = data.test[: args.limit]
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    held_out = HeldOut(levels, noise, args.pf_ode_limit, args.pf_ode_steps, args.seed)
    base: Bits | None = None
    table = []
    for name in dict.fromkeys([BASE, *names]):
        run = folder / name.replace(" ", "-").replace("'", "")
        train(args, run, known[name])
        ebm = EBM.from_pretrained(run, str(accelerator.device))
        ebm.energy = ebm.energy.with_eps(config.eps)
        bits = held_out.bits_of(accelerator, ebm)
        base = bits if base is None else base
        speed = read_json(run / RUN_FILE)["figures"]["images_per_second"]
        row = {"variant": name, **figures_of(bits, base), "images_per_second": speed}
        table.append({**row, "integration_error": integration_error(accelerator, ebm, held_out)})
        print(f"{name:20} {in_words(row, 'the base')}", flush=True)
    text = to_markdown(table)
    print(text)
    with explained_write(folder):
        (folder / "levers.md").write_text(text, encoding="utf-8")
        record.write({"table": table, "num_images": len(levels)})
    shut_down(accelerator)
    return {"table": table}


def train(args: Namespace, output_dir: Path, variant: Sequence[str]) -> None:
    """A run of one variant."""
    flags = ["--dataset", args.dataset, "--data_root", args.data_root, "--seed", str(args.seed)]
    flags += ["--device", args.device, "--max_train_steps", str(args.max_train_steps)]
    train_once(SCRIPT, [*flags, *shlex.split(args.ebm_flags), *variant], output_dir)


def integration_error(accelerator: Accelerator, ebm: EBM, held_out: HeldOut) -> float:
    """The largest error of the model's own rule over the few images, in bits per dim: how hard
    its time score is to integrate."""
    levels, noise = held_out.few
    y = ebm.dequantise(levels, noise[0]).y
    (found,) = fixed_nodes(ebm.energy, y, reference(ebm.energy, y), [ebm.energy.num_nodes])
    return found.error


def to_markdown(table: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown."""
    heads = ["change", *COLUMNS.values(), "error of the rule", "images/s"]
    lines = [heads, ["---"] * len(heads)]
    for row in table:
        cells = [f"{row[name]:.3f} ± {row[f'{name}_stderr']:.3f}" for name in COLUMNS]
        error, speed = f"{row['integration_error']:.1e}", f"{row['images_per_second']:.0f}"
        lines.append([row["variant"], *cells, error, speed])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_script(main))
