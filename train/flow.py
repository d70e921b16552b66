"""Fit a flow, in whose latent space an energy model can live, and print its bits per dim.

python train/flow.py --flow gaussian --dataset digits --output_dir runs/gaussian
accelerate launch train/flow.py --flow spline --dataset digits --output_dir runs/spline
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from accelerate import Accelerator
from annotated_types import Ge, Le

from ebm_app.data.images import ImageData
from ebm_app.image_models.flow import Flow, FlowConfig
from ebm_app.io import RUN_FILE
from ebm_app.io.cli import Parser, RunRecord, described, resolve_device
from ebm_app.io.errors import UserError
from ebm_app.io.fields import setting
from ebm_app.io.output import saving
from ebm_app.io.processes import make_accelerator, shut_down
from ebm_app.io.records import from_dict, to_dict
from ebm_app.io.registry import choose
from ebm_app.io.writing import explained_write
from ebm_app.models.config import LoopConfig, Margin
from ebm_app.models.unet import Layers, Width
from ebm_app.numerics.tensors import seeded
from ebm_app.spaces import SPACES
from ebm_app.training.command_line import add_data_flags, add_run_flags, images_of, options_of
from ebm_app.training.launch import RunOptions, clean_output, held, launch
from ebm_app.training.presets import flow_preset
from ebm_app.training.settings import LOOP_KINDS, check_loop
from ebm_app.training.tasks import FlowTask

FLOWS = {name: kind for name, kind in SPACES.items() if name != "ambient"}
#: settings of a training that a flow without one has too
CLOSED_FORM = {"seed", "validation_images", "validation_repeats", "num_preview_images"}
#: dequantised images that a flow is fitted to, at least: small data sets are repeated
MIN_FIT_IMAGES = 30_000
Bins = Annotated[int, Ge(1), Le(256)]


@dataclass(frozen=True)
class FlowArguments:
    """What a kind of flow may be told, beside the images that it is fitted to."""

    margin: Margin = setting("margin of the logit at black and white", 1e-6)
    layers: Layers = setting("couplings of a spline flow", 8)
    hidden: Width = setting("channels of the networks of a spline flow", 32)
    bins: Bins = setting("pieces of a spline", 8)


LOOP_KEYS, ARGUMENTS = (
    {field.name for field in fields(cls)} for cls in (LoopConfig, FlowArguments)
)


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line; arguments of the flow and of its training are absent unless given."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.group("model").add_argument
    add("--flow", default="gaussian", metavar="NAME", help=described(FLOWS))
    parser.add_config(FlowArguments, "model")
    parser.add_config(LoopConfig, "training", LOOP_KINDS)
    add_run_flags(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Fit, train what is left to learn, and score; the metrics, on the main process."""
    args = parse_args(argv)
    data, given = images_of(args), vars(args)
    kind = choose("flow", args.flow, FLOWS)
    arguments, loop = (
        {name: value for name, value in given.items() if name in keys}
        for keys in (ARGUMENTS, LOOP_KEYS)
    )
    suited, budget = flow_preset(data.name, kind)
    arguments = {**suited, **arguments}
    config = from_dict(LoopConfig, {**budget, **loop}, "training settings")
    check_loop(config, data)
    options = options_of(args, f"{kind}-flow")
    torch.manual_seed(config.seed)  # the weights that a flow starts with
    made_for = (data.name, data.image_shape, data.num_levels)
    flow = Flow(FlowConfig(*made_for, kind, arguments, palette=data.palette))
    settings = {"flow": to_dict(flow.config), "training": to_dict(config)}
    fit(flow, data, config.seed)

    def build(accelerator: Accelerator) -> FlowTask:
        return FlowTask(accelerator, flow, config, data, options.output_dir)

    if list(flow.parameters()):
        return remarked(launch(config, settings, options, build), data)
    unused = sorted(set(loop) - CLOSED_FORM)
    if args.resume_from_checkpoint:
        unused.append("resume_from_checkpoint")
    if unused:
        raise UserError(
            f"a {kind} flow is fitted in closed form: leave out --{', --'.join(unused)}"
        )
    return remarked(save(settings, options, build), data)


def remarked(metrics: dict[str, Any] | None, data: ImageData) -> dict[str, Any] | None:
    """The metrics, after what is to be said of them: what of the flow is not from the images, and
    whether these are too few."""
    if metrics is not None:
        shares = ", ".join(f"{name} {share:.2g}" for name, share in metrics["shrinkage"].items())
        print(f"shrinkage, the share that is assumed and not fitted: {shares}", file=sys.stderr)
        bits, uniform = metrics["test_bits_per_dim"], metrics["uniform_bits_per_dim"]
        if bits > uniform:
            print(
                f"warning: {bits:.2f} test bits per dim are more than the {uniform:.2f} of images "
                f"of pure chance: {len(data.train)} images are too few for this flow, give "
                f"{math.prod(data.image_shape)}, as many as one has numbers, or another --flow",
                file=sys.stderr,
            )
    return metrics


def fit(flow: Flow, data: ImageData, seed: int) -> None:
    """Set what the flow has in closed form, from dequantised training images."""
    repeats = max(1, -(-MIN_FIT_IMAGES // len(data.train)))
    levels = data.train.repeat(repeats, 1, 1, 1)
    noise = torch.rand(levels.shape, generator=seeded("cpu", seed))
    flow.space.fit(flow.dequantise(levels, noise), repeats)


def save(
    settings: dict[str, Any], options: RunOptions, build: Callable[[Accelerator], FlowTask]
) -> dict[str, Any] | None:
    """Write and score a flow that has nothing left to learn."""
    output_dir = options.output_dir
    accelerator = make_accelerator(device=resolve_device(options.device))
    with held(accelerator, output_dir):
        task = build(accelerator)
        record = RunRecord(output_dir / RUN_FILE, settings)
        clean_output(accelerator, options)
        with explained_write(output_dir):
            if accelerator.is_main_process:
                task.model.save_pretrained(output_dir)
            accelerator.wait_for_everyone()
            found = task.validator.run(0)
        metrics = {
            "output_dir": str(output_dir),
            "bits_per_dim": found["validation_bits_per_dim"],
            "stderr": found["validation_stderr"],
            **task.final_metrics(output_dir),
        }
        if accelerator.is_main_process:
            with saving(output_dir, metrics):
                record.write(metrics)
        shut_down(accelerator)
    return metrics if accelerator.is_main_process else None


if __name__ == "__main__":
    sys.exit(run_script(main))
