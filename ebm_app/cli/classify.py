"""Measure how well a class-conditional model classifies held-out images.

ebm classify mnist --limit 1000

The class probabilities p(label | x) follow from the model's bounds on log p(x | label). The
calibration error compares the probability of the predicted label with its accuracy.
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
from ebm_app.evaluation.held_out import labels_for
from ebm_app.utils.fields import BatchSize, configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.tensors import standard_error

#: Number of bins of the calibration error
NUM_BINS = 15


@configuration(kw_only=True)
class Arguments(ImageFlags):
    batch_size: BatchSize = setting("images per batch", 50)
    output_dir: Path = setting("folder for the record", Path("runs/classify"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Classify held-out images; return the accuracy, calibration error and cost."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    data, levels = held_out(args, ebm)
    labels = labels_for(ebm.config, data, args.split)[: args.limit]
    output = Output(args.output_dir / "classify.json", args)
    begin = time.perf_counter()
    batches = tqdm(levels.split(args.batch_size), desc="classify")
    posteriors = [ebm.classify(batch, seed=args.seed) for batch in batches]
    seconds = time.perf_counter() - begin
    confidence, predicted = torch.cat([each.probabilities for each in posteriors]).max(1)
    is_correct = (predicted == labels).double()
    figures = {
        "accuracy": is_correct.mean().item(),
        "stderr": standard_error(is_correct).item(),
        "calibration_error": calibration_error(confidence, is_correct),
        "nfe": torch.cat([each.nfe for each in posteriors]).double().mean().item(),
        "seconds_per_image": seconds / len(levels),
        "num_images": len(levels),
        "split": args.split,
    }
    output.save(figures)
    return figures


def calibration_error(confidence: Tensor, is_correct: Tensor) -> float:
    """Return the expected calibration error: the mean over images of |accuracy - confidence| in
    their confidence bin.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3, with 15 bins of equal width.

    >>> calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([1.0, 0.0]))
    0.4

    Args:
        confidence: (N,), probabilities of the predicted labels.
        is_correct: (N,), 1 where the label is correct and 0 elsewhere.
    """
    bins = (confidence.double() * NUM_BINS).long().clamp_max(NUM_BINS - 1)
    gap = torch.zeros(NUM_BINS, dtype=torch.float64)
    gap.index_add_(0, bins, is_correct - confidence.double())
    return round(gap.abs().sum().item() / len(confidence), 6)
