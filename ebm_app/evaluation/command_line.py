"""What the evaluation scripts share: held-out images, estimators in a row, and how they
disagree."""

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from itertools import combinations
from math import isfinite, log
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.evaluation.bits_per_dim import score_split
from ebm_app.likelihood import Estimator
from ebm_app.likelihood.dequantisation import Dequantiser, TruncatedNormal
from ebm_app.numerics import standard_error
from ebm_app.runs.cli import Parser, resolve_device
from ebm_app.runs.processes import Wrap, make_accelerator


class Row(NamedTuple):
    """A way to score images: an estimator of log p_t, and a dequantiser, None for the model's."""

    estimator: Estimator
    dequantiser: Dequantiser | None = None


def add_data_flags(parser: Parser, batch_size: int = 128) -> None:
    """The flags of a script that scores held-out images of a model."""
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--dataset", help="the model's own if not given")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--split", default="test", help="train, validation or test")
    add("--limit", type=int, help="score the first images only")
    add("--repeats", type=int, default=4, help="dequantisation draws of each image")
    add("--batch_size", type=int, default=batch_size, help="images taken together")
    add("--eps", type=float, help="margin left at t = 1; the model's own if not given")


def open_model(args: Namespace) -> tuple[Accelerator, EBM]:
    """The processes and the model of a script, with the margin asked for."""
    accelerator = make_accelerator(device=resolve_device(args.device))
    ebm = EBM.from_pretrained(args.model, str(accelerator.device))
    if args.eps is not None:
        ebm.energy = ebm.energy.with_eps(args.eps)
        if args.eps < ebm.model.eps:
            print(
                f"note: trained to eps {ebm.model.eps} only: what the integral adds beyond it was "
                "never learned, and may be too few bits",
                file=sys.stderr,
            )
    return accelerator, ebm


def held_out(args: Namespace, ebm: EBM) -> Tensor:
    """The images to score by a script's flags; see :func:`held_out_levels`."""
    name = args.dataset or ebm.config.dataset
    data = held_out_levels(ebm, name, args.split, args.data_root, args.download)
    return check_enough(data[: args.limit])


def held_out_levels(
    ebm: EBM,
    dataset: str,
    split: str = "test",
    data_root: str = "data",
    download: bool = False,
) -> Tensor:
    """Images of a data set as levels (N, C, H, W).

    Raises:
        UserError: where they cannot be read, or do not fit the model.
    """
    _, height, width = ebm.config.image_shape
    # a folder's images are brought to the model's size as they were for training
    resolution = height if dataset.startswith("folder:") and height == width else None
    data = load_images(dataset, data_root, download, resolution)
    expected = (tuple(ebm.config.image_shape), ebm.config.num_levels)
    if (data.image_shape, data.num_levels) != expected:
        raise UserError(
            f"the model takes images of shape {expected[0]} with {expected[1]} levels, but "
            f"{data.name} has {data.image_shape} with {data.num_levels}"
        )
    return data.split(split)


def check_enough(levels: Tensor) -> Tensor:
    """The same images, if they are enough for a standard error; a UserError otherwise."""
    if len(levels) < 2:
        raise UserError("at least 2 images are needed for a standard error: raise --limit")
    return levels


def score_row(
    accelerator: Accelerator,
    ebm: EBM,
    levels: Tensor,
    noise: Tensor,
    row: Row,
    batch_size: int,
    wrap: Wrap = iter,
) -> tuple[Tensor, dict[str, Any]]:
    """Bits per dim of every image (N,), and the figures of a table."""
    begin, num_dims = time.perf_counter(), levels[0].numel()
    dequantiser = row.dequantiser or ebm.dequantiser
    options = {"dequantiser": dequantiser, "estimator": row.estimator}
    scores = score_split(accelerator, ebm, levels, noise, batch_size, wrap, **options)
    end = ebm.energy.end
    if isinstance(dequantiser, TruncatedNormal):
        end = dequantiser.time(ebm.config.num_levels, ebm.space, ebm.energy.path)
    time_end = torch.tensor(end, dtype=torch.float64)
    error = scores.error.mean().item() / (num_dims * log(2))
    return scores.bits_per_dim, {
        "bits_per_dim": scores.bits_per_dim.mean().item(),
        "stderr": standard_error(scores.bits_per_dim).item(),
        "numerical_error": error if isfinite(error) else None,  # one probe has no error
        "eps": 1 - end,
        "final_variance": ebm.energy.path.variance(time_end).item(),
        "nfe": scores.nfe.mean().item(),
        "num_images": len(levels),
        "repeats": len(noise),
        "seconds": time.perf_counter() - begin,
    }


def reaches(row: Row, ebm: EBM) -> bool:
    """Whether the model's space has cells for a row's dequantiser, and the model knows the time
    at which it reads the density."""
    if not isinstance(row.dequantiser, TruncatedNormal):
        return True
    if ebm.space.scale is None:
        return False
    path, num_levels = ebm.energy.path, ebm.config.num_levels
    return row.dequantiser.time(num_levels, ebm.space, path) <= ebm.energy.end


def disagreements(scores: dict[str, Tensor]) -> list[dict[str, Any]]:
    """For each pair of estimators the mean difference of bits per dim on the same images, first
    less second, with the standard error of that mean."""
    return [
        {
            "first": a,
            "second": b,
            "difference": (scores[a] - scores[b]).mean().item(),
            "stderr": standard_error(scores[a] - scores[b]).item(),
        }
        for a, b in combinations(scores, 2)
    ]


def print_rows(rows: dict[str, dict[str, Any]], report: Callable[[str], None] = print) -> None:
    """One line an estimator."""
    heads = (("bits/dim", 9), ("stderr", 7), ("num.err", 8), ("eps", 8), ("nfe", 7), ("s", 7))
    report(f"{'estimator':23}" + " ".join(f"{head:>{width}}" for head, width in heads))
    for name, row in rows.items():
        report(
            f"{name:23}{row['bits_per_dim']:9.4f} {row['stderr']:7.4f} "
            f"{row['numerical_error'] or float('nan'):8.1e} {row['eps']:8.1e} {row['nfe']:7.0f} "
            f"{row['seconds']:7.1f}"
        )
