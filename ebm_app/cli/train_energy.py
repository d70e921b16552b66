"""Distil a trained model into an energy network: log p_t(x) in one evaluation.

ebm energy digits --output_dir runs/digits-energy
ebm energy mnist --data_root data --output_dir runs/mnist-energy

The energy network is trained on the model's outputs for noisy training images. At the end, its
calibration offset is measured on validation images and stored with it: the mean difference between
its log density and its variational bound.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import ImageFileFlags, Positional, explicit, parse
from ebm_app.cli.run_flags import resume, run_options
from ebm_app.config import LoopConfig
from ebm_app.training.plan import RunOptions
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting

#: Defaults that differ from those of ``LoopConfig``
RECIPE: dict[str, Any] = dict(
    max_train_steps=4500,
    train_batch_size=64,
    optimizer="muon",
    max_grad_norm=1.0,
    validation_images=200,
    validation_repeats=1,
)


@configuration(kw_only=True)
class Arguments(LoopConfig, RunOptions, ImageFileFlags):
    model: Positional[str | None] = setting("model: folder, bundled name or hub id", None)
    dataset: str | None = setting("data set; if not given, the model's", None)
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    image_column: str | None = setting("column of images, if a data set has several", None)
    label_column: str | None = setting("column of labels, if a data set has several", None)
    init_from: str | None = setting(
        "energy network that initialises the weights: folder, bundled name or hub id", None
    )
    output_dir: Path = setting("folder of the run", Path("runs/energy"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Distil a model; return the metrics on the main process, and None on others."""
    args = parse(Arguments, __doc__, argv, ("dataset", "data_root"))
    args, resumed = resume(args, argv)
    # slow to import, and not needed for --help
    from ebm_app.ebm import EBM
    from ebm_app.evaluation.held_out import images_for
    from ebm_app.training.energy_task import EnergyTask
    from ebm_app.training.launch import launch
    from ebm_app.training.settings import resolve_loop

    if args.model is None:
        raise UserError("Expected a model to distil: its folder, a bundled name or a hub id.")
    teacher = EBM.from_pretrained(args.model)
    name = args.dataset or teacher.config.dataset
    flags = args.data_root, args.download, args.conversions(), args.skip_bad
    data = images_for(teacher.config, name, *flags, args.image_column, args.label_column)
    config = resolve_loop(RECIPE, explicit(args, argv, LoopConfig), data, resumed)
    task = partial(EnergyTask, teacher=teacher, teacher_name=args.model, data=data)
    return launch(config, run_options(args), task)
