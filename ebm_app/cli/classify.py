"""How well a model tells the classes of held-out images, by p(y | x) from its bounds on p(x | y).

python evaluate/classify.py mnist --limit 1000

The calibration error is that of the probability of the class that is told: the mean over 15 equal
bins of |how often it is right - that probability|, weighted by the images of a bin.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.cli.command_line import parse
from ebm_app.cli.held_out import ImageFlags, held_out
from ebm_app.ebm import EBM
from ebm_app.utils.fields import BatchSize, configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.tensors import standard_error


@configuration(kw_only=True)
class Arguments(ImageFlags):
    """The command line."""

    batch_size: BatchSize = setting("images taken together", 50)
    output_dir: Path = setting("where the record goes", Path("runs/classify"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Classify a split; accuracy, calibration and cost."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    levels, data = held_out(args, ebm)
    labels = data.split_labels(args.split)[: args.limit]
    output = Output(args.output_dir / "classify.json", args)
    begin, found = time.perf_counter(), []
    for batch in tqdm(levels.split(args.batch_size), desc="classify"):
        found.append(ebm.classify(batch, seed=args.seed))
    seconds = time.perf_counter() - begin
    told, classes = torch.cat([posterior.probabilities for posterior in found]).max(1)
    right = (classes == labels).double()
    metrics = {
        "accuracy": right.mean().item(),
        "stderr": standard_error(right).item(),
        "calibration_error": calibration_error(told, right),
        "nfe": torch.cat([posterior.nfe for posterior in found]).double().mean().item(),
        "seconds_per_image": seconds / len(levels),
        "num_images": len(levels),
        "split": args.split,
    }
    output.save(metrics)
    return metrics


def calibration_error(told: Tensor, right: Tensor, num_bins: int = 15) -> float:
    """The expected calibration error of probabilities (N,) of which (N,) were right.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3.

    >>> calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([1.0, 0.0]))
    0.4
    """
    bins = (told.double() * num_bins).long().clamp_max(num_bins - 1)
    excess = torch.zeros(num_bins, dtype=torch.float64).index_add_(0, bins, right - told.double())
    return round(excess.abs().sum().item() / len(told), 6)
