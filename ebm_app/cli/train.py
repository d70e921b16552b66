"""Train an energy-based model of images.

python train/ebm.py --dataset digits --output_dir runs/digits
python train/ebm.py --space ambient --dataset mnist --output_dir runs/mnist

The defaults are those of the recipe of the data set, or of the run of --resume_from_checkpoint.
--config reads settings from a JSON file, also those without a flag (docs/training.md). --dry_run
prints the settings of the run, its time and its memory on this machine.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.command_line import parse, wants_help, without_help
from ebm_app.training.checkpoint import recorded_run, refuse_to_overwrite
from ebm_app.training.config import (
    Train,
    as_default,
    one_length,
    read_settings,
    resumed,
    with_settings,
)
from ebm_app.training.recipes import FORMATS, fitting_size, recipe


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train a model; return the metrics on the main process, and None on others."""
    began = time.perf_counter() - (seconds_since_start() if argv is None else 0.0)
    words = list(sys.argv[1:] if argv is None else argv)
    flags = parse(Train, __doc__, without_help(words))  # determines where the defaults come from
    if flags.resume_from_checkpoint:
        name = flags.resume_from_checkpoint
        recorded, checkpoint = recorded_run(Train, flags.output_dir, name)
        base = as_default(recorded)
        config = one_length(base, parse(Train, __doc__, words, base))
        config = resumed(recorded, config, prefix="--")
        from ebm_app.training.ebm import latent_flow  # slow to import

        data, flow = config.load_data(), latent_flow(checkpoint)
    else:
        settings = read_settings(flags.config) if flags.config else {}
        if flags.init_from and not flags.flow:  # the flow is that of the initial model
            settings.pop("flow", None)
        first = parse(Train, __doc__, without_help(words), with_settings(Train(), settings))
        if first.dataset != settings.get("dataset", first.dataset):
            for name in ("resolution", "image_column", "label_column"):
                settings.pop(name, None)  # belongs to the recorded data set
            first = parse(Train, __doc__, without_help(words), with_settings(Train(), settings))
        if not (first.overwrite_output_dir or first.dry_run):
            refuse_to_overwrite(first.output_dir)
        if wants_help(words):
            form, space = FORMATS.get(first.dataset, FORMATS["mnist"]), first.space
        else:
            from ebm_app.training.ebm import flow_of_run  # slow to import

            data, flow = first.load_data(), flow_of_run(first)
            form = data.image_shape, data.num_levels
            space = first.space if flow is None else flow.config.space
        base = recipe(first.dataset, *form, fitting_size(first), space)
        base = with_settings(base, settings)
        config = one_length(base, parse(Train, __doc__, words, base))
    if config.dry_run:
        from ebm_app.training.dry_run import dry_run  # slow to import

        print(json.dumps(dry_run(config, data, flow), indent=2))
        return None
    from ebm_app.training.ebm import train_ebm  # slow to import

    return train_ebm(config, data, flow, began)


def seconds_since_start() -> float:
    """Return the age of this process in seconds."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
