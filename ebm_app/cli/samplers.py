"""Compare the quality and the cost of samplers, measured by a classifier of the data set.

ebm samplers digits --run "pf_ode num_steps=10" --run annealed_hmc
ebm samplers mnist --run "dpm guidance=1" --run "dpm guidance=1.5"

Each run is one row of the table, followed by training images that the classifier was not fitted
to, which show what a perfect sampler would reach:

- nfe: evaluations of the Stein score per image.
- frechet: Fréchet distance of the classifier's features to those of the validation images.
- class_balance: share of the rarest class divided by that of the most frequent one.
- clear_share: share of images whose class has a probability of at least 0.9.
- copies: share of images nearer to one of 10,000 training images than all but one percent of
  validation images are; identical: share of images equal to one of them.
- of_class, of_class_by_neighbour: for a run with guidance, which draws all classes in turn, share
  of images that have their label by the classifier, and by the nearest training image.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import torch
import tyro
from annotated_types import Ge, Le
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse
from ebm_app.data.images import ImageData, load_images
from ebm_app.ebm import EBM
from ebm_app.evaluation.classifier import train_classifier
from ebm_app.evaluation.frechet import copy_share, nearest, sample_quality
from ebm_app.sampling import SAMPLERS, Sampler
from ebm_app.utils.fields import BatchSize, NonNegative, PositiveInt, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import derive_seed
from ebm_app.utils.registry import choose, settings_of_each

NumImages = Annotated[int, Ge(2), Le(100_000)]
#: Training images among which the nearest neighbour is searched
NUM_NEIGHBOURS = 10_000
#: Draws of training images whose mean and deviation are reported
FLOOR_DRAWS = 10


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    run: tyro.conf.UseAppendAction[tuple[str, ...]] = setting(
        "'SAMPLER key=value ...', can be repeated; defaults to one run of each sampler", ()
    )
    num_images: NumImages = setting("number of images per run", 200)
    batch_size: BatchSize = setting("images per batch", 50)
    classifier_steps: PositiveInt = setting("training steps of the classifier", 600)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("download a missing data set", False)
    output_dir: Path = setting("folder for the record", Path("runs/samplers"))


@configuration
class Guidance:
    """Setting of a run beside those of its sampler."""

    guidance: NonNegative | None = None


def parse_run(text: str) -> tuple[str, Sampler, float | None]:
    """Return the name of the run "SAMPLER key=value ...", its sampler and its guidance."""
    name, *pairs = text.split() or [""]
    kind: type[Sampler] = SAMPLERS[choose("sampler", name, SAMPLERS)]
    own, guided = settings_of_each({name: kind, "run": Guidance}, pairs).values()
    return " ".join([name, *pairs]), kind(**own), guided.get("guidance")


def draw(
    ebm: EBM, name: str, sampler: Sampler, guidance: float | None, args: Arguments
) -> tuple[Tensor, Tensor | None, dict[str, float]]:
    """Return images (N, C, H, W) in [0, 1], their labels (N,) if the run has guidance, and the
    cost."""
    labels, images, nfe, begin = None, [], 0, time.perf_counter()
    if guidance is not None:
        labels = torch.arange(args.num_images) % max(ebm.config.num_classes, 1)
    batches = torch.arange(args.num_images).split(args.batch_size)
    for index, batch in enumerate(tqdm(batches, desc=name)):
        seed, options = derive_seed(args.seed, index), {}
        if labels is not None:
            options = {"labels": labels[batch], "guidance": guidance}
        *_, frame = ebm.iterate_sample(len(batch), sampler, seed, **options)
        images.append(ebm.to_images(frame.x))
        nfe += frame.nfe * len(batch)  # adaptive samplers differ between batches
    cost = {"nfe": nfe / args.num_images, "seconds": time.perf_counter() - begin}
    return torch.cat(images), labels, cost


class Judge:
    """Quality measures of images for a data set, by a classifier trained on part of it, whose
    ``accuracy`` is that on validation images."""

    def __init__(self, data: ImageData, device: torch.device, args: Arguments) -> None:
        num_classes = data.num_classes  # raises for a data set without classes
        labels, validation_labels, _ = data.labels
        train, validation = data.display(data.train), data.display(data.validation)
        self.generator = torch.Generator().manual_seed(args.seed)
        order = torch.randperm(len(train), generator=self.generator)
        num_pool = min(FLOOR_DRAWS * args.num_images, len(train) // 3)
        pool, fitted = order.tensor_split([num_pool])
        options = labels[fitted], num_classes, args.seed, args.classifier_steps
        self.classifier = train_classifier(train[fitted].to(device), *options)
        self.features, logits = self.classifier.features_and_logits(validation)
        self.accuracy = (logits.argmax(1) == validation_labels).double().mean().item()
        self.pool = train[pool]
        neighbours = fitted[:NUM_NEIGHBOURS]
        self.neighbours, self.neighbour_labels = train[neighbours], labels[neighbours]
        self.held_out_distances, _ = nearest(validation[: args.num_images], self.neighbours)

    def measure(self, images: Tensor, labels: Tensor | None) -> dict[str, float]:
        """Return the measures of images (N, C, H, W) drawn for labels (N,), if any."""
        features, logits = self.classifier.features_and_logits(images)
        distances, index = nearest(images, self.neighbours)
        measures = sample_quality(features, logits, self.features)
        measures["copies"] = copy_share(distances, self.held_out_distances)
        measures["identical"] = (distances == 0).double().mean().item()
        if labels is not None:
            by_neighbour = self.neighbour_labels[index] == labels
            measures["of_class"] = (logits.argmax(1) == labels).double().mean().item()
            measures["of_class_by_neighbour"] = by_neighbour.double().mean().item()
        return measures

    def floor(self, num_images: int) -> list[dict[str, Any]]:
        """Return the quality of training images that the classifier was not fitted to: the mean
        over ten draws and, unless they are the whole pool, the deviation."""
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
    """Draw and measure the images of every run; return the table."""
    args = parse(Arguments, __doc__, argv)
    runs = {name: rest for name, *rest in map(parse_run, args.run or SAMPLERS)}
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output = Output(args.output_dir / "samplers.json", args)
    judge = Judge(load_images(ebm.config.dataset, args.data_root, args.download), ebm.device, args)
    figures = {"classifier_accuracy": judge.accuracy, "floor": judge.floor(args.num_images)}
    figures["table"] = []
    for name, run in runs.items():
        images, labels, cost = draw(ebm, name, *run, args)
        figures["table"].append({"run": name, **cost, **judge.measure(images, labels)})
        output.write(figures)  # keeps the rows of an interrupted comparison
    print(to_markdown([*figures["table"], *figures["floor"]]))
    output.save(figures)
    return figures
