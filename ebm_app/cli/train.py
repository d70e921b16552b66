"""Train an energy-based model of images.

accelerate launch train/ebm.py --dataset digits --output_dir runs/digits

A preset for the data set replaces some of the defaults: --dry_run prints what a run would use.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import explicit, parse
from ebm_app.config import Settings
from ebm_app.training.options import DataFlags, RunOptions, options_of
from ebm_app.utils.fields import advanced, configuration, setting
from ebm_app.utils.files import read_json


@configuration(kw_only=True)
class Arguments(Settings, RunOptions, DataFlags):
    """The command line; settings that are not given are the preset's."""

    flow: str | None = setting(
        "folder made by train/flow.py: the path lives in its latent space", None
    )
    dry_run: bool = setting("print the resolved settings and stop", False)
    config: Path | None = advanced("a run.json to take the settings from; flags override it", None)
    init_from: str | None = advanced(
        "folder, bundled name or hub id of a model whose weights a new run takes", None
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train; the metrics of the run, on the main process."""
    args = parse(Arguments, __doc__, argv)
    # seconds to import: --help does without
    from ebm_app.data.images import image_digest, load_images
    from ebm_app.flow import Flow
    from ebm_app.training import settings
    from ebm_app.training.cost import network_cost
    from ebm_app.training.launch import flow_of, train_ebm

    data = load_images(args.dataset, args.data_root, args.download, args.resolution)
    own = explicit(args, argv, Settings)
    base = read_json(args.config).get("settings", {}) if args.config else None
    flow = Flow.from_pretrained(args.flow) if args.flow else flow_of(args.init_from)
    ebm_config, config = settings.resolve(data, own, base, flow)
    if base and (recorded := base.get("data")):
        labels = data.labels[0] if ebm_config.num_classes else None
        same = [image_digest(data.train, labels)] == list(recorded.values())
        if not same and base["ebm"]["dataset"] == data.name:
            print(f"note: the images are not those of {args.config}", file=sys.stderr)
    if args.dry_run:
        cost = {"cost_of_an_image": network_cost(ebm_config)._asdict()}
        print(json.dumps(settings.record(ebm_config, config) | cost, indent=2))
        return None
    options = options_of(args, args.dataset, ebm_config.space)
    return train_ebm(data, ebm_config, config, options, flow)
