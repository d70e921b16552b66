"""Fit a normalising flow, whose latent space an energy-based model can use.

ebm flow --flow gaussian --dataset digits --output_dir runs/gaussian
ebm flow --flow spline --dataset digits --output_dir runs/spline
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import explicit, parse
from ebm_app.cli.run_flags import DataFlags, resume, run_options
from ebm_app.config import LoopConfig
from ebm_app.training.plan import RunOptions
from ebm_app.utils.fields import configuration, setting

#: Min and max dequantised images that a flow is fitted to; small data sets are repeated
MIN_FIT_IMAGES, MAX_FIT_IMAGES = 30_000, 100_000
#: Defaults for flows that differ from those of ``LoopConfig``
RECIPE: dict[str, Any] = dict(max_train_steps=3000)


@configuration(kw_only=True)
class Arguments(LoopConfig, RunOptions, DataFlags):
    flow: str = setting(
        "gaussian (multivariate normal logits), copula (normalised marginals, then whitening) or "
        "spline (spline coupling layers, trained by maximum likelihood)",
        "gaussian",
    )
    output_dir: Path = setting("folder of the run", Path("runs/flow"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Fit a flow and train its weights, if any; return the metrics on the main process, and None
    on others."""
    args = parse(Arguments, __doc__, argv, ("flow", "dataset", "data_root", "output_dir"))
    args, resumed = resume(args, argv)
    # slow to import, and not needed for --help
    import torch

    from ebm_app.data.images import load_images
    from ebm_app.data.levels import dequantise
    from ebm_app.flow import Flow, FlowConfig
    from ebm_app.spaces import SPACES
    from ebm_app.training.launch import launch
    from ebm_app.training.settings import resolve_loop
    from ebm_app.training.tasks import FlowTask
    from ebm_app.utils.random import make_generator
    from ebm_app.utils.registry import choose

    kind = choose("flow", args.flow, SPACES.keys() - {"ambient", "display"})
    data = load_images(
        args.dataset,
        args.data_root,
        args.download,
        args.resolution,
        skip_bad=args.skip_bad,
        image_column=args.image_column,
        label_column=args.label_column,
    )
    config = resolve_loop(RECIPE, explicit(args, argv, LoopConfig), data, resumed)
    torch.manual_seed(config.seed)  # initial weights
    flow = Flow(FlowConfig(data.name, data.image_shape, data.num_levels, kind))
    # fit the parameters with a closed form
    num = min(len(data.train), MAX_FIT_IMAGES)
    repeats = max(1, -(-MIN_FIT_IMAGES // num))
    levels = data.train[torch.arange(num)].repeat(repeats, 1, 1, 1)
    noise = torch.rand(levels.shape, generator=make_generator("cpu", config.seed))
    flow.space.fit(dequantise(levels, data.num_levels, noise), repeats)
    build = partial(FlowTask, flow=flow, data=data)
    return launch(config, run_options(args), build)
