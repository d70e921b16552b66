"""Fit a flow, in whose latent space an energy model can live, and print its bits per dim.

python train/flow.py --flow gaussian --dataset digits --output_dir runs/gaussian
accelerate launch train/flow.py --flow spline --dataset digits --output_dir runs/spline
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ebm_app.cli.command_line import explicit, parse, run_script
from ebm_app.config import LoopConfig
from ebm_app.data.images import ImageData, load_images
from ebm_app.data.levels import dequantise
from ebm_app.flow import Flow, FlowConfig
from ebm_app.spaces import SPACES
from ebm_app.training.launch import launch
from ebm_app.training.options import DataFlags, RunOptions, options_of
from ebm_app.training.settings import check_loop
from ebm_app.training.tasks import FlowTask
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.random import make_generator
from ebm_app.utils.registry import choose

#: dequantised images that a flow is fitted to: small data sets are repeated
MIN_FIT_IMAGES, MAX_FIT_IMAGES = 30_000, 100_000


@configuration(kw_only=True)
class Arguments(LoopConfig, RunOptions, DataFlags):
    """The command line."""

    flow: str = setting(
        "gaussian (logits as one normal), copula (marginals to normal, then whitened), spline "
        "(couplings of splines, learned by likelihood)",
        "gaussian",
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Fit, train what is left to learn, and score; the metrics, on the main process."""
    args = parse(Arguments, __doc__, argv)
    kind = choose("flow", args.flow, SPACES.keys() - {"ambient", "display"})
    data = load_images(args.dataset, args.data_root, args.download, args.resolution)
    config = LoopConfig(**explicit(args, argv, LoopConfig))
    check_loop(config, data)
    options = options_of(args, args.dataset, f"{kind}-flow")
    torch.manual_seed(config.seed)  # the weights that a flow starts with
    flow = Flow(FlowConfig(data.name, data.image_shape, data.num_levels, kind))
    fit(flow, data, config.seed)
    build = partial(FlowTask, flow=flow, config=config, data=data)
    return launch(config, options, build)


def fit(flow: Flow, data: ImageData, seed: int) -> None:
    """Set what the flow has in closed form, from dequantised training images."""
    num = min(len(data.train), MAX_FIT_IMAGES)
    repeats = max(1, -(-MIN_FIT_IMAGES // num))
    levels = data.train[torch.arange(num)].repeat(repeats, 1, 1, 1)
    noise = torch.rand(levels.shape, generator=make_generator("cpu", seed))
    flow.space.fit(dequantise(levels, data.num_levels, noise), repeats)


if __name__ == "__main__":
    sys.exit(run_script(main))
