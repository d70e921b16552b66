"""Quality of the samplers against their cost, measured with a classifier of the data set.

python evaluate/samplers.py digits --run "pf_ode num_steps=10" --run annealed_hmc
python evaluate/samplers.py mnist --run "dpm guidance=1" --run "dpm guidance=1.5"

In the table, nfe are evaluations of the Stein score for an image. The Frechet distance is that of
the classifier's features to validation images, the balance the rarest class over the most frequent
one; clear is the share of images whose class has a probability of 0.9 or more. Held-out images
show what a perfect sampler would reach. A run with "guidance=1.5" asks for every class in turn;
columns more are then the shares that the classifier, and the nearest neighbour among raw training
images, take for it. Copies are the images nearer to one of 10,000 training images than all but 1
percent of as many validation images are.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, ModelFlag, Repeated, parse
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.evaluation.classifier import train_classifier
from ebm_app.evaluation.frechet import nearest, quality, share_of_copies
from ebm_app.sampling.samplers import SAMPLERS, Sampler
from ebm_app.utils.fields import BatchSize, NonNegative, PositiveInt, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import derive_seed
from ebm_app.utils.registry import choose, settings_of_each

#: the metrics are of several images, which are held in memory
NumImages = Annotated[int, Ge(2), Le(100_000)]
#: the metrics of images (N, C, H, W) and the labels (N,) that were asked for, if any
Measure = Callable[[Tensor, Tensor | None], dict[str, float]]
#: training images among which the nearest neighbour is sought
NUM_NEIGHBOURS = 10_000
#: draws of images that the floor is the mean of
FLOOR_DRAWS = 10


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    run: Repeated[tuple[str, ...]] = setting(
        "'SAMPLER key=value ...', repeatable; each sampler if not given", ()
    )
    num_images: NumImages = setting("images drawn in each run", 200)
    batch_size: BatchSize = setting("images drawn together", 50)
    classifier_steps: PositiveInt = setting("training steps of the classifier", 600)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    output_dir: Path = setting("where the record goes", Path("runs/samplers"))


@configuration
class Guided:
    """What a run may set beside its sampler."""

    guidance: NonNegative | None = None


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw by every run and measure; the table, its floor and the classifier's accuracy."""
    args = parse(Arguments, __doc__, argv)
    runs = {" ".join(text.split()): parse_run(text) for text in args.run or SAMPLERS}
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output = Output(args.output_dir / "samplers.json", args)
    measure, found = prepare(ebm, args)
    table = []
    for text, (sampler, guidance) in runs.items():
        images, labels, cost = draw(ebm, sampler, guidance, text, args)
        table.append({"run": text, **cost, **measure(images, labels)})
        output.write({**found, "table": table})  # what is there if the next is cut off
    print(to_markdown([*table, *found["floor"]]))
    output.save({**found, "table": table})
    return {**found, "table": table}


def parse_run(text: str) -> tuple[Sampler, float | None]:
    """The sampler of "name key=value ...", and its guidance towards labels, if any."""
    name, *pairs = text.split() or [""]
    kind = SAMPLERS[choose("sampler", name, SAMPLERS)]
    own, guided = settings_of_each({name: kind, "run": Guided}, pairs).values()
    return kind(**own), guided.get("guidance")


def prepare(ebm: EBM, args: Arguments) -> tuple[Measure, dict[str, Any]]:
    """Train the classifier: the metrics by it, its accuracy and the floor, which is of training
    images that the classifier was not fitted to."""
    data = load_images(ebm.config.dataset, args.data_root, args.download)
    num_classes = data.num_classes  # raises where there are none
    labels, held_out_labels, _ = data.labels
    train, validation = data.display(data.train), data.display(data.validation)
    generator = torch.Generator().manual_seed(args.seed)
    order = torch.randperm(len(train), generator=generator)
    pool, fitted = order.tensor_split([min(FLOOR_DRAWS * args.num_images, len(train) // 3)])
    classifier = train_classifier(
        train[fitted].to(ebm.device),
        labels[fitted],
        num_classes,
        args.seed,
        args.classifier_steps,
    )
    features, held_out_logits = classifier.features_and_logits(validation)
    neighbours = fitted[:NUM_NEIGHBOURS]
    usual, _ = nearest(validation[: args.num_images], train[neighbours])

    def measure(images: Tensor, asked: Tensor | None) -> dict[str, float]:
        own, logits = classifier.features_and_logits(images)
        distances, index = nearest(images, train[neighbours])
        found = quality(own, logits, features)
        found["copies"] = share_of_copies(distances, usual)
        found["identical"] = (distances == 0).double().mean().item()
        if asked is not None:
            found["of_class"] = (logits.argmax(1) == asked).double().mean().item()
            near = (labels[neighbours][index] == asked).double().mean().item()
            found["of_class_by_neighbour"] = near
        return found

    of_pool, draws = classifier.features_and_logits(train[pool]), []
    is_all = args.num_images >= len(pool)  # of which there is one draw
    for _ in range(1 if is_all else FLOOR_DRAWS):
        rows = torch.randperm(len(pool), generator=generator)[: args.num_images]
        draws.append(quality(*(part[rows] for part in of_pool), features))
    summaries = {f"{len(rows)} held-out images": mean}
    if not is_all:
        summaries["their deviation"] = stdev
    floor = [
        {"run": name, **{key: summary(draw[key] for draw in draws) for key in draws[0]}}
        for name, summary in summaries.items()
    ]
    accuracy = (held_out_logits.argmax(1) == held_out_labels).double().mean().item()
    return measure, {"classifier_accuracy": accuracy, "floor": floor}


def draw(
    ebm: EBM, sampler: Sampler, guidance: float | None, text: str, args: Arguments
) -> tuple[Tensor, Tensor | None, dict[str, float]]:
    """The images (N, C, H, W) of a run, the labels (N,) asked for, if any, and its seconds and
    evaluations of the score for an image."""
    begin, images, nfe, given = time.perf_counter(), [], 0, {}
    batches, labels = torch.arange(args.num_images).split(args.batch_size), None
    if guidance is not None:
        labels = torch.arange(args.num_images) % max(ebm.config.num_classes, 1)
    for index, batch in enumerate(tqdm(batches, desc=text)):
        if labels is not None:
            given = {"labels": labels[batch], "guidance": guidance}
        seed = derive_seed(args.seed, index)
        *_, frame = ebm.iterate_sample(len(batch), sampler, seed, **given)
        images.append(ebm.to_images(frame.x))
        nfe += frame.nfe * len(batch)  # an adaptive sampler takes its own number in each batch
    cost = {"nfe": nfe / args.num_images, "seconds": time.perf_counter() - begin}
    return torch.cat(images), labels, cost
