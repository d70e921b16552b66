"""Distil a trained model into an energy network: log p_t(x) in one evaluation.

python train/energy.py digits --output_dir runs/digits-energy
python train/energy.py mnist --data_root data --output_dir runs/mnist-energy

The energy network is trained on the model's outputs for noisy training images. At the end, its
calibration offset is measured on validation images and stored with it: the mean difference between
its log density and its variational bound.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ebm_app.command_line import parse, peek, run_script
from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import images_for
from ebm_app.training.build import announce, check_run, open_run
from ebm_app.training.checkpoint import find_checkpoint, recorded_settings, refuse_to_overwrite
from ebm_app.training.distillation import build, calibrate
from ebm_app.training.loop import fit
from ebm_app.training.settings import (
    TrainEnergy,
    as_default,
    one_length,
    read_settings,
    resumed,
    with_settings,
)
from ebm_app.utils.errors import UserError
from ebm_app.utils.processes import start_of_process

#: Flags on which the defaults of the others depend
DECISIVE = ("config", "output_dir", "resume_from_checkpoint")


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Distil a model; return the metrics on the main process, and None on others."""
    start = start_of_process() if argv is None else time.perf_counter()
    words = list(sys.argv[1:] if argv is None else argv)
    chosen, default, checkpoint = peek(TrainEnergy, words, DECISIVE), TrainEnergy(), None
    if name := chosen.get("resume_from_checkpoint"):
        checkpoint = find_checkpoint(chosen.get("output_dir", default.output_dir), name)
        default = as_default(recorded_settings(TrainEnergy, checkpoint))
    elif "config" in chosen:
        default = with_settings(default, read_settings(chosen["config"]))
    config = one_length(default, parse(TrainEnergy, __doc__, words, default))
    if checkpoint is not None:
        config = resumed(default, config)
    elif not config.overwrite_output_dir:
        refuse_to_overwrite(config.output_dir)
    if config.model is None:
        raise UserError("Expected a model to distil: its folder, a bundled name or a hub id.")
    teacher = EBM.from_pretrained(config.model)
    data = images_for(
        teacher.config,
        config.dataset or teacher.config.dataset,
        config.data_root,
        config.download,
        image_column=config.image_column,
        label_column=config.label_column,
    )
    check_run(config, data)
    with open_run(config, data) as (accelerator, output):
        # accelerate's configuration file may set the precision
        config = replace(config, mixed_precision=accelerator.mixed_precision)
        task = build(accelerator, config, teacher, data)
        announce(accelerator, data)
        figures = fit(accelerator, config, task, output, start, checkpoint)
        levels = task.validation[: figures["validation_images"]]
        figures |= calibrate(accelerator, output.folder, levels)
        if not accelerator.is_main_process:
            return None
        output.save(figures)
        return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
