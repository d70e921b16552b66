"""Distil an energy network from a trained model: log p, its score and its time score in one pass.

accelerate launch train/energy.py digits --output_dir runs/digits-energy

The model's outputs are its targets, at noisy copies of its training images. At the end the mean
difference of one pass from the variational bound on validation images is stored with the model.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from ebm_app.cli.command_line import ModelFlag, explicit, parse, run_script
from ebm_app.config import LoopConfig
from ebm_app.training.options import RunOptions, options_of
from ebm_app.utils.fields import advanced, configuration, setting

#: what suits a distillation, in place of the defaults
SUITED: dict[str, Any] = dict(optimizer="muon", max_train_steps=4500, train_batch_size=64)
SUITED |= dict(max_grad_norm=1.0, validation_steps=1500, checkpointing_steps=250)
SUITED |= dict(validation_images=200, validation_repeats=1)


@configuration(kw_only=True)
class Arguments(LoopConfig, RunOptions, ModelFlag):
    """The command line; settings that are not given are those of ``SUITED``."""

    dataset: str | None = setting("the model's own if not given", None)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    init_from: str | None = advanced("an energy network whose weights a new run takes", None)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Distil; the metrics of the run, on the main process."""
    args = parse(Arguments, __doc__, argv)
    # seconds to import: --help does without
    from ebm_app.ebm import EBM
    from ebm_app.evaluation.held_out import images_for
    from ebm_app.training.energy_task import EnergyTask
    from ebm_app.training.launch import launch
    from ebm_app.training.settings import check_loop

    config = LoopConfig(**SUITED | explicit(args, argv, LoopConfig))
    teacher = EBM.from_pretrained(args.model)
    name = args.dataset or teacher.config.dataset
    data = images_for(teacher.config, name, args.data_root, args.download)
    check_loop(config, data)
    options = options_of(args, name, "energy")
    build = partial(EnergyTask, teacher=teacher, name=args.model, config=config, data=data)
    return launch(config, options, build)


if __name__ == "__main__":
    sys.exit(run_script(main))
