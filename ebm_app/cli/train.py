"""Train an energy-based model of images.

ebm train --dataset digits --output_dir runs/digits
ebm train --space ambient --dataset mnist --output_dir runs/mnist

The defaults are those of the recipe of the data set, or of the run of --config or
--resume_from_checkpoint. --dry_run prints the settings of the run, its time and its memory on this
machine.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebm_app.cli.command_line import parse, wants_help, without_help
from ebm_app.config import without_removed
from ebm_app.training.checkpoint import recorded_run, refuse_to_overwrite
from ebm_app.training.config import AUTO, Train, as_default, one_length, resumed
from ebm_app.training.recipes import FORMATS, recipe
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import from_dict
from ebm_app.utils.files import read_json

if TYPE_CHECKING:
    from ebm_app.data.images import ImageData
    from ebm_app.flow import Flow


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train a model; return the metrics on the main process, and None on others."""
    began = time.perf_counter() - (seconds_since_start() if argv is None else 0.0)
    words = list(sys.argv[1:] if argv is None else argv)
    first = parse(Train, __doc__, without_help(words))  # determines where the defaults come from
    if not (first.resume_from_checkpoint or first.overwrite_output_dir or first.dry_run):
        refuse_to_overwrite(first.output_dir)
    loaded = None
    if first.resume_from_checkpoint:
        recorded = recorded_run(Train, first.output_dir, first.resume_from_checkpoint)
        base = as_default(recorded)
    elif first.config:
        base = as_default(read_config(first.config))
        # a new run, in the precision of this machine
        base = replace(base, init_from=None, mixed_precision="auto")
        if parse(Train, __doc__, words, base).dataset != base.dataset:
            # these settings belong to the recorded data set
            base = replace(base, resolution=None, image_column=None, label_column=None)
    elif wants_help(words):
        form = FORMATS.get(first.dataset, FORMATS["mnist"])
        size = "small" if first.size == AUTO else first.size
        base = recipe(first.dataset, *form, size, first.space)
    else:
        from ebm_app.training.sizing import fitting_size  # slow to import

        data, flow = loaded = load(first, first)
        space = first.space if flow is None else flow.config.space
        size = fitting_size(first, data, space)
        base = recipe(data.name, data.image_shape, data.num_levels, size, space)
    config = one_length(base, parse(Train, __doc__, words, base))
    if config.resume_from_checkpoint:
        config = resumed(base, config)
    data, flow = loaded or load(config, first)
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


def load(config: Train, flags: Train) -> "tuple[ImageData, Flow | None]":
    """Return the data set of a run, and the flow of its latent space, if any: that of the flag
    --flow, of the initial model, or of the recorded run."""
    # slow to import, and not needed for --help
    from ebm_app.training.ebm import flow_of_run, latent_flow

    data = config.load_data()
    if flags.init_from and not flags.flow:
        return data, latent_flow(flags.init_from)
    return data, flow_of_run(config)


def read_config(path: Path) -> Train:
    """Return the settings in the run.json of a training run."""
    settings = read_json(path).get("settings")
    if not (isinstance(settings, dict) and isinstance(settings.get("train"), dict)):
        raise UserError(f"{path} is not the run.json of a run of train/ebm.py. Pass that file.")
    return from_dict(Train, without_removed(settings["train"], path), str(path))
