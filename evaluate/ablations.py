"""Train variants of a model that differ in a few settings, and compare their bits per dim.

python evaluate/ablations.py --variant "ema_decay=0" --variant "optimizer=muon max_train_steps=800"
python evaluate/ablations.py --variant objective=ctsm_v --training_args flow=runs/flow

Every variant is a run of train/ebm.py and is compared with the first, which has no settings of its
own, on the same images and noise of the validation split: recipes are chosen by it, so that the
test split stays unseen. A variant that is finished is not made again; a training that was cut off
goes on.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ebm_app.data.images import load_images
from ebm_app.image_models.ebm import EBM
from ebm_app.io import RUN_FILE
from ebm_app.io.command_line import CommonFlags, Repeated, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import PositiveInt, Several, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import make_accelerator, resolve_device, shut_down
from ebm_app.io.records import read_json, to_dict
from ebm_app.io.start import run_script
from ebm_app.numerics.tensors import standard_error
from ebm_app.training.checkpoint import checkpoints
from studies.grid import Figures, fill, to_markdown

SCRIPT = Path(__file__).resolve().parent.parent / "train" / "ebm.py"
BASE = "base"


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    dataset: str = setting("what is learned, as train/ebm.py takes it", "digits")
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    variant: Repeated[tuple[str, ...]] = setting(
        "'key=value ...', repeatable: settings of train/ebm.py", ()
    )
    training_args: tuple[str, ...] = setting(
        "settings KEY=VALUE of every training, words joined by commas where one takes several", ()
    )
    max_train_steps: PositiveInt = setting("steps of a training, if not its variant's", 1000)
    estimator: str | None = setting(
        "of the log-likelihood; each model's own default if not given", None
    )
    limit: Several | None = setting("score the first validation images only", None)
    output_dir: Path = setting("where all goes; it is resumed", Path("runs/ablations"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train what is missing and score it; the table."""
    args = parse(Arguments, __doc__, argv)
    texts = ["", *args.variant]
    variants = {name_of(text.split()): flags_of(text.split()) for text in texts}
    accelerator = make_accelerator(device=resolve_device(args.device))
    file = args.output_dir / "ablations.json"
    output = Output(file, to_dict(args), accelerator.is_main_process)
    shared = {key: value for key, value in to_dict(args).items() if key != "variant"}
    cells = {name: {**shared, "flags": flags} for name, flags in variants.items()}
    run = partial(trained_and_scored, args, variants)
    table = rows_of(fill(args.output_dir, cells, run, accelerator))
    answer = {"table": table, "split": "validation"}
    output.save(answer)
    if accelerator.is_main_process:
        print(to_markdown(table))
    shut_down(accelerator)
    return answer


def name_of(pairs: Sequence[str]) -> str:
    """The name of a variant, which is that of its folder too."""
    return ",".join(pairs).replace("/", "_") or BASE


def flags_of(pairs: Sequence[str]) -> list[str]:
    """Words key=value as flags of train/ebm.py.

    >>> flags_of(["block_out_channels=8,16"])
    ['--block_out_channels', '8', '16']
    """
    parts = (word.partition("=") for word in pairs)
    return [word for key, _, value in parts for word in (f"--{key}", *value.split(","))]


def trained_and_scored(
    args: Arguments, variants: dict[str, list[str]], name: str, folder: Path
) -> Figures:
    """Train a variant; its costs, and bits per dim of every validation image."""
    flags = ["--dataset", args.dataset, "--data_root", args.data_root, "--device", args.device]
    flags += ["--seed", str(args.seed), "--num_preview_images", "0"]
    flags += ["--max_train_steps", str(args.max_train_steps)]
    train_once(SCRIPT, [*flags, *flags_of(args.training_args), *variants[name]], folder / "run")
    figures = figures_of_run(folder / "run")
    ebm = EBM.from_pretrained(folder / "run", resolve_device(args.device))
    levels = load_images(args.dataset, args.data_root).split("validation")[: args.limit]
    parts = [ebm.log_prob(part, args.estimator, seed=args.seed) for part in levels.split(128)]
    costs = ("steps", "images_per_second", "core_seconds")
    bits = torch.cat([part.bits_per_dim for part in parts])
    return {**{key: figures[key] for key in costs}, "bits": bits.tolist()}


def train_once(script: Path, flags: Sequence[str], output_dir: Path) -> None:
    """Run a training script, or go on with a run that was cut off, unless it has finished.

    Raises:
        UserError: where the script fails.
    """
    if figures_of_run(output_dir):
        return
    is_begun = bool(checkpoints(output_dir))
    start = ["--resume_from_checkpoint", "latest"] if is_begun else ["--overwrite_output_dir"]
    command = [str(script), *flags, "--output_dir", str(output_dir), *start]
    print(shlex.join(["python", *command]), file=sys.stderr)
    # each process of a study trains alone
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    alone = {key: value for key, value in os.environ.items() if key not in launcher}
    done = subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, env=alone)
    if done.returncode:
        raise UserError(f"{script.name} failed: see its message above")


def figures_of_run(folder: Path) -> Figures | None:
    """What a finished run reports, or None."""
    return read_json(folder / RUN_FILE)["figures"] if (folder / RUN_FILE).exists() else None


def rows_of(found: dict[str, Figures]) -> list[dict[str, Any]]:
    """Mean bits per dim of every variant with their standard error over images, and how much lower
    than the base they are on the same images, with its own standard error."""
    rows = []
    base = torch.tensor(found[BASE]["bits"], dtype=torch.float64)
    for name, figures in found.items():
        bits = torch.tensor(figures["bits"], dtype=torch.float64)
        row = {"variant": name}
        for key, values in (("bits_per_dim", bits), ("gain", base - bits)):
            row[key] = values.mean().item()
            row[f"{key}_stderr"] = standard_error(values).item()
        costs = {key: value for key, value in figures.items() if key != "bits"}
        rows.append({**row, **costs, "num_images": len(bits)})
    return rows


if __name__ == "__main__":
    sys.exit(run_script(main))
