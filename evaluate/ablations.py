"""Train variants of a model that differ in a few settings, and score them on the same images.

python evaluate/ablations.py --study settings --variants plain_time no_average
python evaluate/ablations.py --study latent --training_args train_batch_size=64 t_scale=100
python evaluate/ablations.py --study recipe --core_seconds 800

Every variant is a run of train/ebm.py, in the latent space of a flow that train/flow.py makes
where the study asks for one. A run that is finished is not made again; one that was cut off goes
on.
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ebm_app.data.images import ImageData, load_images
from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow
from ebm_app.io import RUN_FILE
from ebm_app.io.arguments import settings_of_each
from ebm_app.io.cli import Parser, described, flag, resolve_device
from ebm_app.io.fields import Draws, Positive, PositiveInt, Several, Steps
from ebm_app.io.output import Output
from ebm_app.io.processes import make_accelerator, shut_down
from ebm_app.io.records import read_record
from ebm_app.io.registry import choose
from ebm_app.io.run_schemas import TrainingRun
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import EBMConfig, TrainingConfig
from ebm_app.models.unet import UNetConfig
from ebm_app.training.checkpoint import checkpoints
from ebm_app.training.command_line import add_data_flags
from ebm_app.training.settings import resolve
from studies.ablation_tables import plot_curves, to_markdown
from studies.ablations import AMBIENT, STUDIES, Ablation
from studies.scoring import Bits, ScoredImages, compared
from studies.trainings import train_once

SCRIPTS = Path(__file__).resolve().parent.parent / "train"
#: of the run that tells how long a step takes
TIMED_STEPS = 24


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.group("training").add_argument
    add("--study", default="settings", metavar="NAME", help=described(STUDIES))
    add(
        "--variants", nargs="+", default=[], metavar="NAME", help="of the study; all if none given"
    )
    spaces = f"{AMBIENT}, kinds of flows or folders of flows, in place of the study's own"
    add("--spaces", nargs="+", default=[], metavar="NAME", help=spaces)
    steps = "steps of every training"
    add("--max_train_steps", type=flag(PositiveInt), default=1000, metavar="N", help=steps)
    budget = "seconds of one core that the steps of every training take, in place of their number"
    add("--core_seconds", type=flag(Positive), metavar="S", help=budget)
    further = "further settings of every training, words joined by commas where it takes several"
    add("--training_args", nargs="+", default=[], metavar="KEY=VALUE", help=further)
    add = parser.group("run").add_argument
    add("--output_dir", metavar="DIR", help="where all goes (default: runs/ablations/<study>)")
    add = parser.group("advanced").add_argument
    several = "models scored of every training, evenly spread over its steps, if not the study's"
    add("--num_checkpoints", type=flag(Draws), metavar="N", help=several)
    first = "score the first test images only"
    add("--limit", type=flag(Several), metavar="N", help=first)
    draws = "dequantisation draws of each image"
    add("--repeats", type=flag(Draws), default=1, metavar="N", help=draws)
    few = "images scored by the probability-flow ODE"
    add("--pf_ode_limit", type=flag(Several), default=50, metavar="N", help=few)
    add("--pf_ode_steps", type=flag(Steps), default=12, metavar="N", help="its steps")
    parser.add_common()
    args = parser.parse_args(argv)
    if args.core_seconds:
        parser.refuse(["max_train_steps"], "is what --core_seconds finds: leave one of them out")
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train what is missing and score it; the table."""
    args = parse_args(argv)
    study = STUDIES[choose("study", args.study, STUDIES)]
    args.num_checkpoints = args.num_checkpoints or study.num_checkpoints
    folder = Path(args.output_dir or f"runs/ablations/{args.study}")
    output = Output(folder / "ablations.json", vars(args))
    data = load_images(args.dataset, args.data_root, args.download, args.resolution)
    accelerator = make_accelerator(device=resolve_device(args.device))
    levels = data.test[: args.limit]
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    images = ScoredImages(levels, noise, args.pf_ode_limit, args.pf_ode_steps, args.seed)
    table = []
    for space in args.spaces or study.spaces:
        for row in rows_of(args, study, space, data, images, accelerator):
            table.append(row)
            print(to_markdown([row]).splitlines()[-1], flush=True)
    metrics = {"table": table, "num_images": len(levels)}
    print(to_markdown(table))
    with output.saving(metrics):
        (folder / "ablations.md").write_text(to_markdown(table), encoding="utf-8")
        if args.num_checkpoints > 1:
            plot_curves(table, folder / "ablations.png")
    shut_down(accelerator)
    return metrics


def rows_of(
    args: Namespace,
    study: Ablation,
    space: str,
    data: ImageData,
    images: ScoredImages,
    accelerator: Accelerator,
) -> Iterator[dict[str, Any]]:
    """The rows of one space: its flow, if it has one, and every variant."""
    folder = Path(args.output_dir or f"runs/ablations/{args.study}") / Path(space).name
    flow_folder = fitted_flow(args, space, folder)
    flow = Flow.from_pretrained(flow_folder, str(accelerator.device)) if flow_folder else None
    base: Bits | None = None
    if flow is not None:
        base = images.bits_of(accelerator, flow)
        yield {"space": space, "variant": "flow", "step": None, **compared(base, None)}
    known = study.variants(resolve(data, {}, flow=flow)[0])
    names = [choose("variant", name, known) for name in args.variants or known]
    first_eps = None
    for name in dict.fromkeys([study.base or names[0], *names]):
        run = folder / name
        train(args, run, flow_folder, known[name])
        for step, model in scored_models(run, args.num_checkpoints):
            ebm = EBM.from_pretrained(model, str(accelerator.device))
            first_eps = first_eps or ebm.config.eps
            ebm.energy = ebm.energy.with_eps(first_eps)
            bits = images.bits_of(accelerator, ebm)
            base = bits if base is None or name == study.base else base
            figures = figures_of(run)
            yield {
                "space": space,
                "variant": name,
                "step": step,
                **compared(bits, base),
                "quadrature_error": images.quadrature_error(ebm),
                "images_per_second": figures["images_per_second"],
                "core_seconds": figures["core_seconds"],
            }


def fitted_flow(args: Namespace, space: str, folder: Path) -> Path | None:
    """The folder of the flow of a space; None for the ambient space."""
    if space == AMBIENT or Path(space).is_dir():
        return None if space == AMBIENT else Path(space)
    train_once(SCRIPTS / "flow.py", ["--flow", space, *shared_flags(args)], folder / "flow")
    return folder / "flow"


def train(args: Namespace, run: Path, flow: Path | None, variant: Sequence[str]) -> None:
    """A run of one variant, which keeps the checkpoints that are to be scored."""
    own = [*further_flags(args), *variant, *(["--flow", str(flow)] if flow else [])]
    flags = [*shared_flags(args), "--num_preview_images", "0"]
    num_steps = args.max_train_steps
    if args.core_seconds:
        num_steps = steps_within(args, run.with_name(f"{run.name}-timing"), [*flags, *own])
    flags += ["--max_train_steps", str(num_steps)]
    if args.num_checkpoints > 1:
        every = str(max(1, num_steps // args.num_checkpoints))
        flags += ["--checkpointing_steps", every, "--validation_steps", every]
        flags += ["--checkpoints_total_limit", str(args.num_checkpoints + 1)]
    train_once(SCRIPTS / "ebm.py", [*flags, *own], run)


def steps_within(args: Namespace, run: Path, flags: Sequence[str]) -> int:
    """How many steps ``--core_seconds`` pay for, by a run of a few steps that is made once."""
    little = ["--validation_images", "2", "--validation_repeats", "1"]
    steps = ["--max_train_steps", str(TIMED_STEPS)]
    train_once(SCRIPTS / "ebm.py", [*flags, *little, *steps], run)
    return max(1, round(args.core_seconds * TIMED_STEPS / figures_of(run)["core_seconds"]))


def figures_of(run: Path) -> dict[str, Any]:
    """What a finished run reports."""
    return read_record(TrainingRun, run / RUN_FILE)["figures"]


def shared_flags(args: Namespace) -> list[str]:
    """The flags of both training scripts."""
    where = ["--dataset", args.dataset, "--data_root", args.data_root]
    where += ["--resolution", str(args.resolution)] if args.resolution else []
    return [*where, "--seed", str(args.seed), "--device", args.device]


def further_flags(args: Namespace) -> list[str]:
    """``--training_args`` as flags of train/ebm.py.

    Raises:
        UserError: for settings that it does not have, or values of another type.
    """
    kinds = {"a training": TrainingConfig, "the model": EBMConfig, "its network": UNetConfig}
    settings_of_each(kinds, args.training_args)
    pairs = (word.partition("=") for word in args.training_args)
    return [word for key, _, value in pairs for word in (f"--{key}", *value.split(","))]


def scored_models(run: Path, num: int) -> list[tuple[int, Path]]:
    """(step, folder) of the models of a run that are scored."""
    if num == 1:
        return [(figures_of(run)["steps"], run)]
    return [(int(folder.name.rpartition("-")[2]), folder) for folder in checkpoints(run)]


if __name__ == "__main__":
    sys.exit(run_script(main))
