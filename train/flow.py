"""Fit a flow, in whose latent space an energy model can live, and print its bits per dim.

python train/flow.py --flow gaussian --dataset digits --output_dir runs/gaussian
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ebm_app.checkpoint import explained_write
from ebm_app.cli import Parser, RunRecord, run_script
from ebm_app.data.images import ImageData, load_images
from ebm_app.ebm import dequantisation_noise
from ebm_app.errors import UserError, choose
from ebm_app.flow import Flow, FlowConfig
from ebm_app.folders import CONFIG_FILE
from ebm_app.likelihood import to_bits_per_dim
from ebm_app.numerics import seeded, standard_error
from ebm_app.spaces import SPACES

FLOWS = sorted(set(SPACES) - {"ambient"})
#: dequantised images that a flow is fitted to, at least: small data sets are repeated
MIN_FIT_IMAGES = 30_000


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--flow", default="gaussian", help=", ".join(FLOWS))
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--resolution", type=int, help="resize and crop the images of a folder to this size")
    add("--margin", type=float, help="of the logit of a gaussian flow; 1e-6 if not given")
    add("--repeats", type=int, default=4, help="dequantisation draws that bits per dim average")
    add("--output_dir", help="where the flow goes; runs/<dataset>-<flow>-flow if not given")
    add("--overwrite_output_dir", action="store_true", help="replace the flow that is there")
    add("--seed", type=int, default=0, help="seed of all noise")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit, save and score; the figures."""
    args = parse_args(argv)
    choose("flow", args.flow, FLOWS)
    data = load_images(args.dataset, args.data_root, args.download, args.resolution)
    name = args.dataset.replace("folder:", "").strip("/").replace("/", "-")
    output_dir = Path(args.output_dir or f"runs/{name}-{args.flow}-flow")
    if (output_dir / CONFIG_FILE).exists() and not args.overwrite_output_dir:
        raise UserError(
            f"{output_dir} holds a model: choose another --output_dir, or give "
            "--overwrite_output_dir"
        )
    record = RunRecord(output_dir / "run.json", vars(args))
    arguments = {} if args.margin is None else {"margin": args.margin}
    flow = Flow(FlowConfig(data.name, data.image_shape, data.num_levels, args.flow, arguments))
    fit(flow, data, args.seed)
    figures: dict[str, Any] = {"output_dir": str(output_dir)}
    for prefix, levels in (("", data.validation), ("test_", data.test)):
        noise = dequantisation_noise(args.repeats, levels, args.seed)
        bits = to_bits_per_dim(flow.log_prob(levels, noise), data.num_dims)
        figures[f"{prefix}bits_per_dim"] = bits.mean().item()
        figures[f"{prefix}stderr"] = standard_error(bits).item()
    with explained_write(output_dir):
        flow.save_pretrained(output_dir)
        record.write(figures)
    return figures


def fit(flow: Flow, data: ImageData, seed: int) -> None:
    """Set what the flow estimates in closed form, from dequantised training images."""
    levels = data.train.repeat(max(1, -(-MIN_FIT_IMAGES // len(data.train))), 1, 1, 1)
    noise = torch.rand(levels.shape, generator=seeded("cpu", seed))
    flow.space.fit(flow.dequantise(levels, noise))


if __name__ == "__main__":
    sys.exit(run_script(main))
