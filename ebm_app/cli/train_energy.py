"""Distil a trained model into an energy network: log p_t(x) in one evaluation.

python train/energy.py digits --output_dir runs/digits-energy
python train/energy.py mnist --data_root data --output_dir runs/mnist-energy

The energy network is trained on the model's outputs for noisy training images. At the end, its
calibration offset is measured on validation images and stored with it: the mean difference between
its log density and its variational bound.
"""

import sys
from collections.abc import Sequence
from typing import Any

from ebm_app.command_line import parse, without_help
from ebm_app.training.checkpoint import recorded_run, refuse_to_overwrite
from ebm_app.training.config import (
    TrainEnergy,
    as_default,
    one_length,
    read_settings,
    resumed,
    with_settings,
)
from ebm_app.utils.errors import UserError


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Distil a model; return the metrics on the main process, and None on others."""
    words = list(sys.argv[1:] if argv is None else argv)
    first, base = parse(TrainEnergy, __doc__, without_help(words)), TrainEnergy()
    if name := first.resume_from_checkpoint:
        recorded, _ = recorded_run(TrainEnergy, first.output_dir, name)
        base = as_default(recorded)
    elif first.config:
        base = with_settings(base, read_settings(first.config))
    config = one_length(base, parse(TrainEnergy, __doc__, words, base))
    if config.resume_from_checkpoint:
        config = resumed(base, config, prefix="--")
    elif not config.overwrite_output_dir:
        refuse_to_overwrite(config.output_dir)
    # slow to import, and not needed for --help
    from ebm_app.ebm import EBM
    from ebm_app.evaluation.held_out import images_for
    from ebm_app.training.energy import train_energy

    if config.model is None:
        raise UserError("Expected a model to distil: its folder, a bundled name or a hub id.")
    teacher = EBM.from_pretrained(config.model)
    name = config.dataset or teacher.config.dataset
    data = images_for(
        teacher.config,
        name,
        config.data_root,
        config.download,
        image_column=config.image_column,
        label_column=config.label_column,
    )
    return train_energy(config, teacher, data)
