"""Quality of the samplers against their cost, measured with a classifier of the data set.

python evaluate/samplers.py digits --run "pf_ode num_steps=10" --run "annealed_hmc num_steps=5"
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import hashlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.data.images import load_images, load_labels
from ebm_app.evaluation.classifier import train_classifier
from ebm_app.evaluation.frechet import Reference, label_histogram
from ebm_app.evaluation.sample_plots import METRICS, NOTES, plot_samplers, samplers_table
from ebm_app.image_models.ebm import EBM
from ebm_app.io.arguments import settings_of
from ebm_app.io.cli import Parser, flag, resolve_device
from ebm_app.io.errors import UserError
from ebm_app.io.fields import BatchSize, PositiveInt
from ebm_app.io.output import Output
from ebm_app.io.records import read_record
from ebm_app.io.registry import choose
from ebm_app.io.study_schemas import SamplerRecord
from ebm_app.models.folders import WEIGHTS_FILE, find_folder
from ebm_app.numerics.tensors import mean_except_batch, mixed_seed
from ebm_app.sampling.samplers import SAMPLERS, Sampler

DEFAULT_RUNS = (
    *(f"pf_ode num_steps={num_steps}" for num_steps in (3, 6, 12, 25, 50)),
    "annealed_hmc num_steps=20",
    "annealed_hmc",
    "annealed_hmc acceptance=none",
    "annealed_hmc_energy",
)
#: the metrics are of several images, which are held in memory
NumImages = Annotated[int, Ge(2), Le(100_000)]
#: the metrics of images (N, C, H, W)
Measure = Callable[[Tensor], dict[str, float]]
#: draws of images that the floor is the mean of
FLOOR_DRAWS = 10
#: what the rows of one record have in common
STUDY = ("model", "seed", "num_images", "batch_size", "classifier_steps")


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--run", action="append", help="'SAMPLER key=value ...', repeatable; a list if not given")
    add("--num_images", type=flag(NumImages), default=200, help="images drawn in each run")
    add("--batch_size", type=flag(BatchSize), default=50, help="images drawn together")
    steps = "training steps of the classifier"
    add("--classifier_steps", type=flag(PositiveInt), default=600, help=steps)
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--output_dir", default="runs/samplers", help="where record, table and plot go")
    add("--resume", action="store_true", help="keep the metrics found there and skip their runs")
    parser.add_common()
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw by every run and measure; the table, its floor and the classifier's accuracy."""
    args = parse_args(argv)
    runs = {parse_run(text): " ".join(text.split()) for text in args.run or DEFAULT_RUNS}
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    target = Path(args.output_dir) / "samplers.json"
    study = identity(args)
    rows = earlier_rows(target, study) if args.resume else []
    measure, metrics = prepare(ebm, args)
    metrics = {"study": study, **metrics, "table": rows}
    output = Output(target, vars(args))
    output.write(metrics)
    for sampler, text in runs.items():
        name = next(name for name, kind in SAMPLERS.items() if type(sampler) is kind)
        row = {"sampler": name, "settings": asdict(sampler), "run": text}
        if any(all(old.get(key) == row[key] for key in ("sampler", "settings")) for old in rows):
            continue
        images, cost = draw(ebm, sampler, text, args)
        rows.append({**row, **cost, **measure(images)})
        output.write(metrics)
    table = samplers_table(rows, metrics["floor"])
    print(table)
    with output.saving(metrics):
        text = f"# Samplers of {args.model}\n\n{table}{NOTES}"
        target.with_suffix(".md").write_text(text, encoding="utf-8")
        plot_samplers(rows, metrics["floor"], target.with_suffix(".png"))
    return metrics


def parse_run(text: str) -> Sampler:
    """The sampler of "name key=value ...".

    Raises:
        UserError: for an unknown sampler, a setting it does not have, or one of the wrong type.
    """
    name, *pairs = text.split() or [""]
    kind = SAMPLERS[choose("sampler", name, SAMPLERS)]
    return kind(**settings_of(kind, pairs))


def identity(args: Namespace) -> dict[str, Any]:
    """What the rows of one table share; a folder may hold other weights by now."""
    weights = (find_folder(args.model) / WEIGHTS_FILE).read_bytes()
    same = {"metrics": list(METRICS), **{key: getattr(args, key) for key in STUDY}}
    return {**same, "weights_sha256": hashlib.sha256(weights).hexdigest()}


def earlier_rows(target: Path, study: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier call, none where there was none.

    Raises:
        UserError: where they do not belong to ``study``.
    """
    if not target.exists():
        return []
    metrics = read_record(SamplerRecord, target)["figures"]
    found = metrics.get("study", {})
    if other := [key for key in study if found.get(key) != study[key]]:
        raise UserError(
            f"{target} holds metrics of another {', '.join(other)}: give another --output_dir, or "
            "leave --resume out to replace them"
        )
    return metrics["table"]


def prepare(ebm: EBM, args: Namespace) -> tuple[Measure, dict[str, Any]]:
    """Train the classifier: the metrics by it, its accuracy and the floor, which is of training
    images that the classifier was not fitted to."""
    dataset = ebm.config.dataset
    labels, _, test_labels = load_labels(dataset, args.data_root, args.download)
    data = load_images(dataset, args.data_root, args.download)
    train, test = data.display(data.train), data.display(data.test)
    num_classes = int(labels.max()) + 1
    generator = torch.Generator().manual_seed(args.seed)
    order = torch.randperm(len(train), generator=generator)
    pool, fitted = order.tensor_split([min(FLOOR_DRAWS * args.num_images, len(train) // 3)])
    classifier = train_classifier(
        train[fitted].to(ebm.device),
        labels[fitted],
        num_classes,
        seed=args.seed,
        num_steps=args.classifier_steps,
        wrap=partial(tqdm, desc="classifier"),
    )
    features, logits = classifier.features_and_logits(test)
    low, high = (end.item() for end in mean_except_batch(train.double()).aminmax())
    reference = Reference(features, label_histogram(labels, num_classes), (low, high))
    held_out = train[pool]
    return lambda images: reference.metrics(images, *classifier.features_and_logits(images)), {
        "classifier_accuracy": (logits.argmax(1) == test_labels).double().mean().item(),
        "floor": reference.floor(
            held_out,
            *classifier.features_and_logits(held_out),
            args.num_images,
            FLOOR_DRAWS,
            generator,
        ),
    }


def draw(
    ebm: EBM, sampler: Sampler, text: str, args: Namespace
) -> tuple[Tensor, dict[str, float]]:
    """The images (N, C, H, W) of a run, with its seconds, evaluations of the score and, of a
    sampler that accepts, the acceptance at every temperature, of the first batch."""
    begin, images, nfe, acceptance = time.perf_counter(), [], 0, []
    batches = torch.arange(args.num_images).split(args.batch_size)
    with tqdm(desc=text) as bar:
        for index, batch in enumerate(batches):
            done, seed = bar.n, mixed_seed(args.seed, index)
            for frame in ebm.iterate_sample(len(batch), sampler, seed):
                bar.total = done + (len(batches) - index) * frame.num_steps
                bar.update()
                if index == 0 and frame.acceptance is not None:
                    acceptance.append(round(frame.acceptance, 4))
            images.append(ebm.to_images(frame.x))
            nfe += frame.nfe * len(batch)  # an adaptive sampler takes its own number in each batch
    seconds = time.perf_counter() - begin
    cost = {"nfe": nfe / args.num_images, "seconds": seconds}
    return torch.cat(images), {**cost, **({"acceptance": acceptance} if acceptance else {})}


if __name__ == "__main__":
    sys.exit(run_script(main))
