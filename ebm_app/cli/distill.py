"""Distil a trained model into a one-pass network: an energy or a likelihood.

ebm distill digits --output_dir runs/digits-energy
ebm distill mnist --target likelihood --data_root data --max_train_minutes 20

An energy network is trained on the model's outputs for noisy training images. At the end, its
calibration offset is measured on validation images and stored with it: the mean difference between
its log density and its variational bound.

An amortised likelihood is trained on the per-dimension terms of the model's bound, for training
images and unusual variants of them. The targets are computed first, for up to half of the
time --max_train_minutes, and kept in the output folder for later runs. The error of the network
is calibrated on validation images.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ebm_app.cli.command_line import ImageFileFlags, Positional, explicit, parse
from ebm_app.cli.run_flags import resume, run_options
from ebm_app.config import LoopConfig
from ebm_app.training.plan import RunOptions
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, configuration, setting

#: Defaults that differ from those of ``LoopConfig``, for each target
RECIPES: dict[str, dict[str, Any]] = {
    "energy": dict(max_train_steps=4500, train_batch_size=64, validation_images=200),
    "likelihood": dict(max_train_minutes=20.0, train_batch_size=32, learning_rate=4e-3)
    | dict(adam_weight_decay=0.01),
}
COMMON: dict[str, Any] = dict(optimizer="muon", max_grad_norm=1.0, validation_repeats=1)
#: Number of held-out images of an amortised likelihood
NUM_HELD_OUT = 768
#: Quadrature nodes of the bound of training images. For `mnist`, the standard deviation of its
#: noise is 0.03 bits per dim with 16 nodes, the default, 0.04 with 8, and 0.19 with 4, which are
#: also biased by 0.06. More images are better than more nodes, because the noise averages out.
TRAINING_NODES = 8


@configuration(kw_only=True)
class Arguments(LoopConfig, RunOptions, ImageFileFlags):
    model: Positional[str | None] = setting("model: folder, bundled name or hub id", None)
    target: Literal["energy", "likelihood"] = setting("output of the network", "energy")
    dataset: str | None = setting("data set; if not given, the model's", None)
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    num_images: PositiveInt = setting("max training images, for --target likelihood", 20_000)
    others: tuple[str, ...] = setting(
        "additional data sets with unusual images, for --target likelihood", ()
    )
    init_from: str | None = setting(
        "energy network that initialises the weights, for --target energy: folder, bundled name "
        "or hub id",
        None,
    )
    output_dir: Path = setting("folder of the run", Path("runs/distilled"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Distil a model; return the metrics on the main process, and None on others."""
    began, args = time.perf_counter(), parse(Arguments, __doc__, argv, ("target", "dataset"))
    args, resumed = resume(args, argv)
    # slow to import, and not needed for --help
    from ebm_app.ebm import EBM
    from ebm_app.evaluation.held_out import images_for
    from ebm_app.training.amortised_task import AmortisedTask, make_targets
    from ebm_app.training.energy_task import EnergyTask
    from ebm_app.training.launch import launch
    from ebm_app.training.settings import resolve_loop
    from ebm_app.utils.processes import resolve_device

    if args.model is None:
        raise UserError("Expected a model to distil: its folder, a bundled name or a hub id.")
    if args.init_from and args.target != "energy":
        raise UserError(f"--init_from needs --target energy, got {args.target}. Leave it out.")
    teacher = EBM.from_pretrained(args.model)
    names = [args.dataset or teacher.config.dataset, *args.others]
    flags = args.data_root, args.download, args.conversions(), args.skip_bad
    data, *others = (images_for(teacher.config, name, *flags) for name in names)
    recipe, loop_flags = COMMON | RECIPES[args.target], explicit(args, argv, LoopConfig)
    config, options = resolve_loop(recipe, loop_flags, data, resumed), run_options(args)
    if args.target == "energy":
        build = partial(EnergyTask, teacher=teacher, teacher_name=args.model, data=data)
        return launch(config, options, build)
    teacher.to(resolve_device(args.device))
    sources = [data, *others]
    make = partial(make_targets, teacher, sources, folder=args.output_dir / "targets")
    minutes, seed = config.max_train_minutes, config.seed
    seconds = 0.0 if resumed else 60 * (minutes or math.inf)
    held_out = make("validation", NUM_HELD_OUT, seed=seed, deadline=began + seconds / 8)
    settings = dict(seed=seed, deadline=began + seconds / 2, num_nodes=TRAINING_NODES)
    targets = make("train", args.num_images, **settings)
    if minutes:
        minutes = max(0.1, minutes - (time.perf_counter() - began) / 60)
    config = replace(config, max_train_minutes=minutes, num_preview_images=0)
    build = partial(AmortisedTask, teacher=teacher, targets=targets, held_out=held_out)
    return launch(config, options, build)
