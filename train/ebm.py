"""Train an energy-based model of images.

accelerate launch train/ebm.py --dataset digits --output_dir runs/digits

A preset for the data set replaces some of the defaults: --dry_run prints what a run would use.
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import json
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.image_models.flow import Flow
from ebm_app.io.cli import Parser, described
from ebm_app.io.records import read_json
from ebm_app.models.config import EBMConfig, TrainingConfig
from ebm_app.models.unet import UNetConfig
from ebm_app.paths import PATHS
from ebm_app.training import settings
from ebm_app.training.command_line import (
    OWN_FLAGS,
    add_data_flags,
    add_run_flags,
    images_of,
    options_of,
)
from ebm_app.training.fine_tuning import flow_of
from ebm_app.training.launch import train_ebm

#: flags that are no settings of the model or of its training
OWN = OWN_FLAGS | {"flow", "config", "init_from", "dry_run"}


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line; model and training settings are absent unless given."""
    parser = Parser(__doc__)
    add_data_flags(parser)
    add = parser.group("model").add_argument
    flow = "folder made by train/flow.py: the path lives in its latent space"
    add("--flow", metavar="DIR", help=flow)
    path = f"{described(PATHS)} (default: linear_vp)"
    add("--path", default=SUPPRESS, metavar="NAME", help=path)
    parser.add_config(UNetConfig, "model")
    parser.add_config(EBMConfig, "model", settings.MODEL_KINDS)
    parser.add_config(TrainingConfig, "training", settings.LOOP_KINDS | settings.TRAINING_KINDS)
    add_run_flags(parser)
    add = parser.group("run").add_argument
    add("--dry_run", action="store_true", help="print the resolved settings and stop")
    add = parser.group("advanced").add_argument
    config = "a run.json to take the settings from; flags override it"
    add("--config", metavar="FILE", help=config)
    weights = "folder, bundled name or hub id of a model whose weights a new run takes"
    add("--init_from", metavar="MODEL", help=weights)
    moment = "second moment of the data that the path assumes: a number, or data to measure it"
    add("--c", default=SUPPRESS, metavar="X", help=f"{moment} (default: 1)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train; the metrics of the run, on the main process."""
    args = parse_args(argv)
    data = images_of(args)
    given = {key: value for key, value in vars(args).items() if key not in OWN}
    base = read_json(Path(args.config)).get("settings", {}) if args.config else None
    flow = Flow.from_pretrained(args.flow) if args.flow else flow_of(args.init_from)
    ebm_config, config = settings.resolve(data, given, base, flow)
    if args.dry_run:
        print(json.dumps(settings.record(ebm_config, config), indent=2))
        return None
    return train_ebm(data, ebm_config, config, options_of(args, ebm_config.space), flow)


if __name__ == "__main__":
    sys.exit(run_script(main))
