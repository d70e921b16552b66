"""How well a model tells the classes of held-out images, by p(y | x) from its bounds on p(x | y).

python evaluate/classify.py mnist --limit 1000

The calibration error is that of the probability of the class that is told: the mean over 15 equal
bins of |how often it is right - that probability|, weighted by the images of a bin.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.data.folder import SPLITS
from ebm_app.evaluation.held_out import images_for
from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import CommonFlags, ModelFlag, parse, settings_of
from ebm_app.io.fields import BatchSize, Several, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.io.start import run_script
from ebm_app.likelihood.classes import ClassBounds
from ebm_app.numerics.tensors import standard_error


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    split: str = setting("train, validation or test", "test")
    limit: Several | None = setting("take the first images only", None)
    batch_size: BatchSize = setting("images taken together", 50)
    args: tuple[str, ...] = setting("settings KEY=VALUE: num_rounds, num_times, margin", ())
    output_dir: Path = setting("where the record goes", Path("runs/classify"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Classify a split; accuracy, calibration and cost."""
    args = parse(Arguments, __doc__, argv)
    split, settings = choose("split", args.split, SPLITS), settings_of(ClassBounds, args.args)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    data = images_for(ebm, ebm.config.dataset, args.data_root, args.download)
    levels = data.split(split)[: args.limit]
    labels = data.split_labels(split)[: args.limit]
    output = Output(args.output_dir / "classify.json", to_dict(args))
    begin, found = time.perf_counter(), []
    for part in tqdm(levels.split(args.batch_size), desc="classify"):
        found.append(ebm.classify(part, seed=args.seed, **settings))
    seconds = time.perf_counter() - begin
    probabilities = torch.cat([posterior.probabilities for posterior in found])
    told, classes = probabilities.max(1)
    right = (classes == labels).double()
    metrics = {
        "accuracy": right.mean().item(),
        "stderr": standard_error(right).item(),
        "calibration_error": calibration_error(told, right),
        "mean_probability": told.mean().item(),
        "nfe": torch.cat([posterior.nfe for posterior in found]).double().mean().item(),
        "seconds_per_image": seconds / len(levels),
        "num_images": len(levels),
        "split": split,
    }
    output.save(metrics)
    print(
        f"{len(levels)} {split} images: accuracy {metrics['accuracy']:.4f} +- "
        f"{metrics['stderr']:.4f}, calibration error {metrics['calibration_error']:.4f}, "
        f"{metrics['nfe']:.0f} evaluations and {metrics['seconds_per_image']:.2f} s an image"
    )
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


if __name__ == "__main__":
    sys.exit(run_script(main))
