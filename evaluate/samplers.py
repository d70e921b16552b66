"""Compare the quality and cost of samplers, using a classifier of the data set.

python evaluate/samplers.py digits --run "probability_flow num_steps=10" --run annealed_hmc
python evaluate/samplers.py mnist --run "dpm guidance_scale=1" --run "dpm guidance_scale=1.5"

The table has one row per run. The labels of a class-conditional model are used in turn in a run
with a guidance scale, random otherwise, and not used in a run with labels=none. The last rows
measure training images that were held out from the classifier; a perfect sampler would reach their
values.

- nfe: network evaluations per image, in the last batch: forward and backward passes.
- frechet: Fréchet distance to the validation images, in the feature space of the classifier.
- class_balance: frequency of the rarest class divided by that of the most frequent class.
- confident_fraction: fraction of images whose predicted class has a probability of at least 0.9.
- copies: fraction of images that are closer to one of 10,000 training images than 99% of the
  validation images are; identical: fraction of images equal to one of these training images.
- of_class, of_class_by_neighbour: fraction of images whose label is confirmed by the classifier,
  and by the nearest training image. Only for runs with a guidance scale.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, Literal

import torch
import tyro
from annotated_types import Ge, Le
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.data.datasets import ImageData
from ebm_app.data.labels import names_of
from ebm_app.ebm import EBM
from ebm_app.evaluation.classifier import train_classifier
from ebm_app.evaluation.frechet import copied_fraction, nearest, sample_quality
from ebm_app.evaluation.held_out import images_for
from ebm_app.sampling import SAMPLERS, Sampler
from ebm_app.utils.fields import BatchSize, NonNegative, PositiveInt, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import choose, settings_of_each

NumImages = Annotated[int, Ge(2), Le(100_000)]
#: Number of training images searched for nearest neighbours
NUM_NEIGHBOURS = 10_000
#: Number of draws of training images over which the mean and deviation are taken
FLOOR_DRAWS = 10


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    run: tyro.conf.UseAppendAction[tuple[str, ...]] = setting(
        "'SAMPLER key=value ...', may be repeated; if not given, one run per sampler", ()
    )
    num_images: NumImages = setting("number of images per run", 200)
    batch_size: BatchSize = setting("images per batch", 50)
    classifier_steps: PositiveInt = setting("training steps of the classifier", 600)
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    output_dir: Path = setting("folder for the record", Path("runs/samplers"))


@configuration
class Condition:
    """Settings of a run in addition to those of its sampler."""

    guidance_scale: NonNegative | None = None
    labels: Literal["none"] | None = None


def parse_run(text: str) -> tuple[str, Sampler, Condition]:
    """Parse "SAMPLER key=value ..." into the name, sampler and condition of a run."""
    name, *pairs = text.split() or [""]
    kind: type[Sampler] = SAMPLERS[choose("sampler", name, SAMPLERS)]
    own, condition = settings_of_each({name: kind, "run": Condition}, pairs).values()
    return " ".join([name, *pairs]), kind(**own), Condition(**condition)


def draw(
    ebm: EBM, name: str, sampler: Sampler, condition: Condition, args: Arguments
) -> tuple[Tensor, Tensor | None, dict[str, float]]:
    """Draw images (N, C, H, W) in [0, 1]; return them, their labels (N,) if the run has a
    guidance scale, and the cost."""
    labels, begin = None, time.perf_counter()
    options = {"labels": condition.labels, "batch_size": args.batch_size}
    if condition.guidance_scale is not None:
        options["guidance_scale"] = condition.guidance_scale
        if condition.labels is None:
            labels = torch.arange(args.num_images) % max(ebm.config.num_classes, 1)
            options["labels"] = names_of(labels, ebm.config.classes())
    with tqdm(desc=name) as bar:
        for frame in ebm.iterate_sample(args.num_images, sampler, args.seed, **options):
            bar.total = frame.num_steps
            bar.update()
    cost = {"nfe": frame.nfe, "seconds": time.perf_counter() - begin}
    return ebm.to_images(frame.x), labels, cost


class Judge:
    """Measures image quality with a classifier trained on part of a data set. ``accuracy`` is the
    validation accuracy of the classifier."""

    def __init__(self, data: ImageData, device: torch.device, args: Arguments) -> None:
        num_classes = data.num_classes  # raises an error for a data set without classes
        labels, validation_labels, _ = data.labels
        train, validation = data.display(data.train), data.display(data.validation)
        self.generator = torch.Generator().manual_seed(args.seed)
        order = torch.randperm(len(train), generator=self.generator)
        num_pool = min(FLOOR_DRAWS * args.num_images, len(train) // 3)
        pool, fitted = order.tensor_split([num_pool])
        self.classifier = train_classifier(
            train[fitted].to(device), labels[fitted], num_classes, args.seed, args.classifier_steps
        )
        self.features, logits = self.classifier.features_and_logits(validation)
        self.accuracy = (logits.argmax(1) == validation_labels).double().mean().item()
        self.pool = train[pool]
        neighbours = fitted[:NUM_NEIGHBOURS]
        self.neighbours, self.neighbour_labels = train[neighbours], labels[neighbours]
        self.held_out_distances, _ = nearest(validation[: args.num_images], self.neighbours)

    def measure(self, images: Tensor, labels: Tensor | None) -> dict[str, float]:
        """Return the measures of images (N, C, H, W), drawn for labels (N,) if any."""
        features, logits = self.classifier.features_and_logits(images)
        distances, index = nearest(images, self.neighbours)
        measures = sample_quality(features, logits, self.features)
        measures["copies"] = copied_fraction(distances, self.held_out_distances)
        measures["identical"] = (distances == 0).double().mean().item()
        if labels is not None:
            by_neighbour = self.neighbour_labels[index] == labels
            measures["of_class"] = (logits.argmax(1) == labels).double().mean().item()
            measures["of_class_by_neighbour"] = by_neighbour.double().mean().item()
        return measures

    def floor(self, num_images: int) -> list[dict[str, Any]]:
        """Return the measures of training images held out from the classifier: the mean over ten
        draws and, unless a draw is the whole pool, the standard deviation."""
        features, logits = self.classifier.features_and_logits(self.pool)
        is_whole = num_images >= len(self.pool)
        draws = []
        for _ in range(1 if is_whole else FLOOR_DRAWS):
            rows = torch.randperm(len(self.pool), generator=self.generator)[:num_images]
            draws.append(sample_quality(features[rows], logits[rows], self.features))
        summaries = {f"{len(rows)} held-out images": mean}
        if not is_whole:
            summaries["their deviation"] = stdev
        return [
            {"run": name, **{key: summary(draw[key] for draw in draws) for key in draws[0]}}
            for name, summary in summaries.items()
        ]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw and measure the images of all runs; return the table."""
    args = parse(Arguments, __doc__, argv)
    runs = {name: options for name, *options in map(parse_run, args.run or SAMPLERS)}
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output = Output(args.output_dir / "samplers.json", args)
    data = images_for(ebm.config, ebm.config.dataset, args.data_root, args.download)
    judge = Judge(data, ebm.device, args)
    figures = {"classifier_accuracy": judge.accuracy, "floor": judge.floor(args.num_images)}
    figures["table"] = []
    for name, run in runs.items():
        images, labels, cost = draw(ebm, name, *run, args)
        figures["table"].append({"run": name, **cost, **judge.measure(images, labels)})
        output.write(figures)  # keep the results if a later run fails
    print(to_markdown([*figures["table"], *figures["floor"]]))
    output.save(figures)
    return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
