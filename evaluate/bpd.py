"""Bits per dim of a model on held-out images.

python evaluate/bpd.py digits --estimator all
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.data.images import load_images
from ebm_app.distributed import make_accelerator, shut_down
from ebm_app.ebm import EBM, dequantisation_noise
from ebm_app.energy import QUADRATURE
from ebm_app.errors import UserError
from ebm_app.numerics import standard_error
from ebm_app.validation import score_split

#: estimator -> integrator of the log ratio
ESTIMATORS = {"ratio": QUADRATURE, "ode": "rk45"}


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--dataset", help="the model's own if not given")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--split", default="test", help="train, validation or test")
    add("--estimator", default="ratio", choices=[*ESTIMATORS, "all"], help="how it is integrated")
    add("--limit", type=int, help="score the first images only")
    add("--repeats", type=int, default=4, help="dequantisation draws of each image")
    add("--eps", type=float, help="margin left at t = 1; the model's own if not given")
    add("--num_nodes", type=int, help="quadrature nodes; the model's own if not given")
    add("--batch_size", type=int, default=128, help="images scored together")
    add("--output_dir", default="runs/bpd", help="where the record and the scores go")
    parser.add_common()
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Score a split; the figures, on the main process."""
    args = parse_args(argv)
    accelerator = make_accelerator(device=resolve_device(args.device))
    ebm = EBM.from_pretrained(args.model, str(accelerator.device))
    if args.eps is not None:
        ebm.energy = ebm.energy.with_eps(args.eps)
        if args.eps < ebm.model.eps:
            print(
                f"note: trained for eps {ebm.model.eps} only, so this extrapolates",
                file=sys.stderr,
            )
    if args.num_nodes is not None:
        ebm.energy = ebm.energy.with_nodes(args.num_nodes)
    levels = held_out(args, ebm)
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    record = RunRecord(Path(args.output_dir) / "bpd.json", vars(args))
    names = list(ESTIMATORS) if args.estimator == "all" else [args.estimator]
    results = {name: estimate(accelerator, ebm, levels, noise, name, args) for name in names}
    figures = {**results[names[0]], "split": args.split, "model": args.model}
    if args.estimator == "all":
        figures["estimators"] = results
    is_main = accelerator.is_main_process
    if is_main:
        print_table(results)
        record.write(figures)
    shut_down(accelerator)
    return figures if is_main else None


def held_out(args: Namespace, ebm: EBM) -> Tensor:
    """The images to score, as levels."""
    name, (_, height, width) = args.dataset or ebm.config.dataset, ebm.config.image_shape
    # a folder's images are brought to the model's size as they were for training
    resolution = height if name.startswith("folder:") and height == width else None
    data = load_images(name, args.data_root, args.download, resolution)
    expected = (tuple(ebm.config.image_shape), ebm.config.num_levels)
    if (data.image_shape, data.num_levels) != expected:
        raise UserError(
            f"the model takes images of shape {expected[0]} with {expected[1]} levels, but "
            f"{data.name} has {data.image_shape} with {data.num_levels}"
        )
    levels = data.split(args.split)[: args.limit]
    if len(levels) < 2:
        raise UserError("at least 2 images are needed for a standard error: raise --limit")
    return levels


def estimate(
    accelerator: Accelerator, ebm: EBM, levels: Tensor, noise: Tensor, name: str, args: Namespace
) -> dict[str, Any]:
    """The figures of one estimator."""
    begin = time.perf_counter()
    bar = partial(tqdm, desc=name, disable=not accelerator.is_main_process)
    scores = score_split(
        accelerator, ebm, levels, noise, args.batch_size, bar, integrator=ESTIMATORS[name]
    )
    end = torch.tensor(ebm.energy.end, dtype=torch.float64)
    return {
        "bits_per_dim": scores.bits_per_dim.mean().item(),
        "stderr": standard_error(scores.bits_per_dim).item(),
        "integration_error": scores.error.mean().item() / (levels[0].numel() * log(2)),
        "eps": ebm.model.eps if args.eps is None else args.eps,
        "final_variance": ebm.model.path.variance(end).item(),
        "nfe": scores.nfe.mean().item(),
        "num_images": len(levels),
        "repeats": args.repeats,
        "seconds": time.perf_counter() - begin,
    }


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """One line an estimator."""
    heads = (("bits/dim", 9), ("stderr", 7), ("int.err", 8), ("eps", 8), ("nfe", 7), ("s", 7))
    print(f"{'estimator':10}", *(f"{head:>{width}}" for head, width in heads))
    for name, row in results.items():
        print(
            f"{name:10} {row['bits_per_dim']:9.4f} {row['stderr']:7.4f} "
            f"{row['integration_error']:8.1e} {row['eps']:8.1e} {row['nfe']:7.0f} "
            f"{row['seconds']:7.1f}"
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
