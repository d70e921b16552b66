"""Train an energy-based model of images.

python train/ebm.py --dataset digits --output_dir runs/digits
python train/ebm.py --space ambient --dataset mnist --output_dir runs/mnist

The defaults are those of the recipe of the data set, or of the run of --resume_from_checkpoint.
--config reads settings from a JSON file, also those without a flag (docs/training.md). --dry_run
prints the settings of the run, its time and its memory on this machine.
"""

import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ebm_app.command_line import parse, peek, run_script
from ebm_app.config import EBMConfig
from ebm_app.data.datasets import ImageData
from ebm_app.flow import Flow
from ebm_app.training.build import fit_model, latent_flow, make_config, warn_of_few_steps
from ebm_app.training.checkpoint import find_checkpoint, recorded_settings, refuse_to_overwrite
from ebm_app.training.recipes import FORMATS, OF_IMAGES, OF_SIZE, fitting_size, recipe
from ebm_app.training.settings import (
    Train,
    as_default,
    one_length,
    read_settings,
    resumed,
    with_settings,
)
from ebm_app.utils.fields import to_dict
from ebm_app.utils.processes import start_of_process

#: Flags on which the defaults of the others depend
DECISIVE = ("dataset", "size", "space", "flow", "init_from", "device", "config", "output_dir")
DECISIVE += ("max_train_steps", "max_train_minutes", "resume_from_checkpoint")
#: Settings of a recorded run that belong to its data set
OF_DATA = ("resolution", "image_column", "label_column")
#: Measured steps of a dry run
DRY_STEPS = 6


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train a model; return the metrics on the main process, and None on others."""
    start = start_of_process() if argv is None else time.perf_counter()
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = peek(Train, words, DECISIVE)
    if name := chosen.get("resume_from_checkpoint"):
        checkpoint = find_checkpoint(chosen.get("output_dir", Train.output_dir), name)
        recorded = recorded_settings(Train, checkpoint)
        default = as_default(recorded)
        config = one_length(default, parse(Train, __doc__, words, default))
        config, flow = resumed(recorded, config), latent_flow(checkpoint)
        data = config.load_data()
    else:
        checkpoint, settings = None, read_settings(chosen["config"]) if "config" in chosen else {}
        if chosen.get("dataset", settings.get("dataset")) != settings.get("dataset"):
            settings = without(settings, OF_DATA)
        if "size" in chosen:
            settings = without(settings, OF_SIZE)
        if "init_from" in chosen and "flow" not in chosen:
            settings.pop("flow", None)  # the flow is that of the initial model
        base = with_settings(Train(), settings)
        first = one_length(base, replace(base, **chosen))
        flow = Flow.from_pretrained(first.flow) if first.flow else latent_flow(first.init_from)
        space = first.space if flow is None else flow.config.space
        form, size = FORMATS.get(first.dataset, FORMATS["mnist"]), fitting_size(first)
        default = with_settings(recipe(first.dataset, *form, size, space), settings)
        config = one_length(default, parse(Train, __doc__, words, default))
        if not (config.overwrite_output_dir or config.dry_run):
            refuse_to_overwrite(config.output_dir)
        data = config.load_data()
        own = recipe(config.dataset, data.image_shape, data.num_levels, size, space)
        fitted = {name: getattr(own, name) for name in OF_IMAGES if name not in settings}
        config = replace(config, **fitted)
    ebm_config = make_config(config, data, flow)
    if config.dry_run:
        print(json.dumps(dry_run(config, ebm_config, data, flow), indent=2))
        return None
    figures = fit_model(config, ebm_config, data, flow, start, checkpoint)
    if figures is not None:
        advice = "more minutes" if config.size == "tiny" else "--size tiny or more minutes"
        warn_of_few_steps(config, figures["steps"], advice)
    return figures


def without(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the settings whose names are not among ``names``."""
    return {name: value for name, value in settings.items() if name not in names}


def dry_run(
    config: Train, ebm_config: EBMConfig, data: ImageData, flow: Flow | None
) -> dict[str, Any]:
    """Return the settings of a run, and its cost, measured by a few steps in a temporary folder:
    the number of weights, seconds per step, steps, minutes, and the peak memory in GiB."""
    with TemporaryDirectory() as folder:
        short = {"max_train_steps": DRY_STEPS, "max_train_minutes": None, "lr_decay_steps": None}
        short |= {"validation_images": 2, "num_preview_images": 0, "report_to": "jsonl"}
        short |= {"output_dir": Path(folder), "resume_from_checkpoint": None}
        fit_model(replace(config, **short), ebm_config, data, flow, time.perf_counter())
        record = json.loads(Path(folder, "run.json").read_text())
    precision = record["settings"]["train"]["mixed_precision"]
    seconds = record["figures"]["training_seconds"] / DRY_STEPS
    steps = config.max_train_steps or round(60 * config.max_train_minutes / seconds)
    if torch.cuda.is_available() and config.device != "cpu":
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "train": {**to_dict(config), "mixed_precision": precision},
        "ebm": to_dict(ebm_config),
        "weights": record["figures"]["weights"],
        "seconds_per_step": seconds,
        "steps": steps,
        "minutes": config.max_train_minutes or steps * seconds / 60,
        "peak_memory_gib": memory / 2**30,
    }


if __name__ == "__main__":
    raise SystemExit(run_script(main))
