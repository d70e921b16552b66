"""Train an energy-based model of images.

accelerate launch train/ebm.py --dataset digits --output_dir runs/digits
"""

import json
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.flow import Flow
from ebm_app.models.config import TrainingConfig, read_json
from ebm_app.runs.cli import Parser, run_script
from ebm_app.training import settings
from ebm_app.training.command_line import RUN_FLAGS, add_run_flags, images_of, options_of
from ebm_app.training.launch import train_ebm

OWN = RUN_FLAGS | {"flow", "config", "init_from", "dry_run"}


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line; model and training settings are absent unless given."""
    parser = Parser(__doc__)
    add_run_flags(parser)
    add = parser.add_argument
    add("--flow", help="a folder made by train/flow.py: the path lives in its latent space")
    add("--config", help="a run.json to take settings from; flags override it")
    add("--init_from", help="a folder, a bundled name or a hub id whose weights a new run takes")
    add("--dry_run", action="store_true", help="print the resolved settings and stop")
    model = parser.add_argument_group("model (the data set's preset where not given)")
    for name, kind, text in (
        ("space", str, "ambient, or with --flow its kind: gaussian, copula or spline"),
        ("net_input", str, "in a latent space, what the network reads: u, its image x, or ux"),
        ("path", str, "linear_vp, or vp: the paper's, with beta 0.1 to 20"),
        ("c", str, "second moment of the data that the path assumes: a number, or data"),
        ("dequantisation", str, "uniform, or truncated_normal: train on the centres of the cells"),
        ("eps", float, "margin left at t = 1; truncated_normal says where to stop"),
        ("num_nodes", int, "quadrature nodes of a likelihood"),
        ("prediction", str, "what the network predicts: moments, normalised or raw time scores"),
        ("time_input", str, "what the network sees: clock or time"),
        ("layers_per_block", int, "residual blocks of a level"),
        ("num_heads", int, "attention heads"),
        ("norm_num_groups", int, "groups of the group normalisations"),
        ("dropout", float, "dropout of the residual blocks"),
        ("t_scale", float, "factor of the time inside the embedding"),
    ):
        model.add_argument(f"--{name}", type=kind, default=SUPPRESS, help=text)
    for name, kind, text in (
        ("block_out_channels", int, "channels of every level"),
        ("attention_levels", int, "levels with attention"),
        ("input_frequencies", float, "Fourier features of the input, in cycles"),
    ):
        model.add_argument(f"--{name}", type=kind, nargs="*", default=SUPPRESS, help=text)
    parser.add_config(TrainingConfig)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Train; the metrics of the run, on the main process."""
    args = parse_args(argv)
    data = images_of(args)
    given = {key: value for key, value in vars(args).items() if key not in OWN}
    base = read_json(Path(args.config)).get("settings", {}) if args.config else None
    flow = Flow.from_pretrained(args.flow) if args.flow else None
    ebm_config, config = settings.resolve(data, given, base, flow)
    if args.dry_run:
        print(json.dumps(settings.record(ebm_config, config), indent=2))
        return None
    return train_ebm(data, ebm_config, config, options_of(args, ebm_config.space), flow)


if __name__ == "__main__":
    sys.exit(run_script(main))
