"""Distil an energy network from a trained model: log p, its score and its time score in one pass.

ebm train_energy digits --output_dir runs/digits-energy

The targets are the outputs of the model at noisy copies of its training images. At the end, the
calibration offset is measured on validation images and stored with the model: the log density of
one pass minus the variational bound, on average.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ebm_app.cli.command_line import ConversionFlags, Positional, explicit, parse
from ebm_app.cli.run_flags import refuse_used_folder, restore, run_options
from ebm_app.config import LoopConfig
from ebm_app.training.plan import RunOptions
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import advanced, configuration, setting

#: Defaults for a distillation that differ from those of ``LoopConfig``
RECIPE: dict[str, Any] = dict(optimizer="muon", max_train_steps=4500, train_batch_size=64)
RECIPE |= dict(max_grad_norm=1.0, validation_images=200, validation_repeats=1)


@configuration(kw_only=True)
class Arguments(LoopConfig, RunOptions, ConversionFlags):
    """Flags of the command. Settings of ``RECIPE`` replace the defaults."""

    model: Positional[str | None] = setting("a folder, a bundled name or a hub id", None)
    dataset: str | None = setting("data set; the model's own if not given", None)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("download a missing data set", False)
    init_from: str | None = advanced("energy network whose weights a new run starts from", None)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Distil, and return the metrics on the main process."""
    args = parse(Arguments, __doc__, argv, ("dataset", "data_root", "output_dir"))
    refuse_used_folder(args)
    args, resumed = restore(args, argv, args.dataset or "", "energy")
    # slow to import, and not needed for --help
    from ebm_app.ebm import EBM
    from ebm_app.evaluation.held_out import images_for
    from ebm_app.training.energy_task import EnergyTask
    from ebm_app.training.launch import launch
    from ebm_app.training.settings import resolve_loop

    if args.model is None:
        raise UserError("Name the model to distil: its folder, a bundled name or a hub id.")
    teacher = EBM.from_pretrained(args.model)
    dataset = args.dataset or teacher.config.dataset
    allowed = args.conversions()
    data = images_for(teacher.config, dataset, args.data_root, args.download, allowed)
    config = resolve_loop(RECIPE, explicit(args, argv, LoopConfig), data, resumed)
    build = partial(EnergyTask, teacher=teacher, name=args.model, data=data)
    return launch(config, run_options(args, dataset, "energy"), build)
