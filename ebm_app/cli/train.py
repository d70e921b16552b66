"""Train an energy-based model of images.

ebm train --space ambient --dataset mnist --output_dir runs/mnist

The recipe of the data set replaces some defaults. --dry_run prints the settings of the run,
its time and its memory on this machine.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import NAMES, check_name, explicit, parse
from ebm_app.cli.run_flags import DataFlags, restore, resume, run_options
from ebm_app.config import Settings
from ebm_app.training.plan import RunOptions, flags_on_resume
from ebm_app.utils.fields import advanced, configuration, setting
from ebm_app.utils.files import read_json

#: Flags that ``--help`` lists first
FIRST = ("space", "dataset", "data_root", "output_dir", "objective", "path")


@configuration(kw_only=True)
class Arguments(Settings, RunOptions, DataFlags):
    flow: str | None = setting(
        "folder of a flow from train/flow.py; train in its latent space", None
    )
    dry_run: bool = setting("print the settings, time and memory of the run, then exit", False)
    config: Path | None = advanced("run.json to take settings from; flags override them", None)
    init_from: str | None = advanced(
        "model that initialises the weights: folder, bundled name or hub id", None
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train a model; return the metrics on the main process, and None on others."""
    args = parse(Arguments, __doc__, argv, FIRST)
    for name in NAMES.keys() & {field.name for field in fields(Settings)}:
        check_name(name, getattr(args, name))
    args, resumed = (args, {}) if args.dry_run else resume(args, argv)
    file = resumed or None
    if args.config and not resumed:
        file = read_json(args.config).get("settings", {})
        args = restore(args, argv, file)
    # slow to import, and not needed for --help
    from ebm_app.data.images import image_digest, load_images
    from ebm_app.flow import Flow
    from ebm_app.training.ebm_task import EBMTask
    from ebm_app.training.launch import latent_flow, launch
    from ebm_app.training.recipes import network_cost
    from ebm_app.training.settings import record_settings, resolve
    from ebm_app.training.timing import dry_run

    flags = explicit(args, argv, Settings)
    if resumed:
        flags = flags_on_resume(resumed["training"], flags)
    data = load_images(
        args.dataset,
        args.data_root,
        args.download,
        args.resolution,
        skip_bad=args.skip_bad,
        image_column=args.image_column,
        label_column=args.label_column,
    )
    flow = Flow.from_pretrained(args.flow) if args.flow else latent_flow(args.init_from)
    ebm_config, config = resolve(data, flags, file, flow)
    if args.config and file["ebm"]["dataset"] == data.name and "data" in file:
        digest = image_digest(data.train, data.labels[0] if ebm_config.num_classes else None)
        if file["data"] != {"digest of the images": digest}:
            print(f"warning: The images differ from those of {args.config}.", file=sys.stderr)
    task = partial(EBMTask, ebm_config=ebm_config, data=data, flow=flow)
    if args.dry_run:
        config, cost = dry_run(config, args.device, task)
        costs = {"cost_of_an_image": network_cost(ebm_config), "cost_on_this_machine": cost}
        print(json.dumps(record_settings(ebm_config, config) | costs, indent=2))
        return None
    return launch(config, run_options(args), task)
