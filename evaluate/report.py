"""Write report.md of a training run from the records beside it.

python evaluate/report.py runs/digits

The folder must hold the record of evaluate/bpd.py. The records of evaluate/samplers.py and
evaluate/memorisation.py there become part of the report, and so do records of evaluate/bpd.py in
its subfolders, of other images or estimators.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ebm_app.evaluation.frechet import samplers_table
from ebm_app.io import METRICS_FILE, RUN_FILE
from ebm_app.io.command_line import Positional, argument, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import configuration
from ebm_app.io.records import as_written, read_json
from ebm_app.io.start import run_script
from ebm_app.io.writing import replace_file
from ebm_app.training.metrics import best_validation, read_metrics

HEAD = """# {name}

An energy-based model of {dataset} images ({shape}) in the space {space}, learned by {objective}.

| metric | value |
| --- | --- |
| steps of {batch} images; of the model kept, by least validation loss | {steps}; {kept} |
| weights that it started from, and their steps | {origin} |
| images a second in training | {images_per_second:.0f} |
| seconds of training; device at its end | {training_seconds:.0f}; {device} |
| bits per dim in validation, by the default estimator | {validation:.4f} |
| images evaluated, and draws of each | {num_images} of the split `{split}`, {repeats} |
| bits per dim by `{estimator}` | **{bits_per_dim:.4f} ± {stderr:.4f}** |
| margin eps at t = 1 (variance left) | {eps:g} ({final_variance:.1e}) |

Stopping at t = 1 - eps, and a density that is normalised only as far as the time score is exact,
are part of these bits: compare them with others at the same eps.

## Bits per dim by every estimator

| estimator | dequantisation | bits per dim | images × draws | eps | evaluations | own error |
| --- | --- | --- | --- | --- | --- | --- |"""
COPIES = """## Copies

Median distance to the nearest training image, root mean square of the pixels:
{median_distance:.4f} of {num_images} drawn images,
{median_distance_held_out:.4f} of {num_held_out} held-out ones.
{percent:.1f} percent of the drawn lie nearer than all but {quantile:.0%} of the held-out;
{identical} are identical.
"""
BPD_FILE, KEYS = "bpd.json", ("bits_per_dim", "stderr", "eps")
PICTURES = {
    "samples/grid.png": "samples",
    "memorisation.png": "drawn, and the nearest training images",
    "loss.png": "training",
}
Record = dict[str, Any]
T = TypeVar("T")


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    run: Positional[str] = argument("folder of a training run, with the record of evaluate/bpd.py")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the report and print its metrics."""
    folder = Path(parse(Arguments, __doc__, argv).run)
    target = folder / "report.md"
    bpd = section(folder / BPD_FILE, lambda record: record["figures"])
    metrics = section(folder / BPD_FILE, lambda _: {key: bpd[key] for key in KEYS})
    files = [folder / BPD_FILE, *sorted(folder.glob(f"*/{BPD_FILE}"))]
    parts = [
        section(folder / RUN_FILE, lambda run: head(folder, run, bpd)),
        *(section(file, likelihoods) for file in files),
        *(section(file, made_by) for file in files),
        *(section(folder / file, write) for file, write in SECTIONS.items()),
        *(f"![{what}]({file})\n" for file, what in PICTURES.items() if (folder / file).is_file()),
        section(folder / RUN_FILE, foot),
    ]
    replace_file(target, "\n".join(part for part in parts if part).encode())
    print(
        f"{folder.name}, held out: {metrics['bits_per_dim']:.4f} +- {metrics['stderr']:.4f} "
        f"bits per dim at eps {metrics['eps']:g}; see {target}"
    )
    return {"report": str(target), **metrics}


def section(file: Path, write: Callable[[Record], T]) -> T | None:
    """What ``write`` says of a record; nothing of one of ``SECTIONS`` that is not there.

    Raises:
        UserError: where the file cannot be read, or lacks a value.
    """
    if file.name in SECTIONS and not file.exists():
        return None
    with as_written(file):
        return write(read_json(file))


def head(folder: Path, run: Record, bpd: Record) -> str:
    """What was trained, for how long, and the main metrics."""
    if run["figures"] is None:
        raise UserError(f"the run in {folder} has not ended: resume it, or report on another")
    best = best_validation(read_metrics(folder / METRICS_FILE))
    if best is None:
        raise UserError(f"{folder} lacks the run's {METRICS_FILE}: copy it there")
    ebm, figures = run["settings"]["ebm"], run["figures"]
    first = run["settings"].get("init_from") or {}
    costs = ("steps", "images_per_second", "training_seconds", "device")
    return HEAD.format(
        name=folder.name,
        dataset=ebm["dataset"],
        shape=" × ".join(map(str, ebm["image_shape"])),
        space=ebm["space"],
        objective=run["settings"]["training"]["objective"].replace("_", "-").upper(),
        batch=figures["total_batch_size"],
        kept=int(best["step"]),
        origin=f"`{first['model']}`, {first.get('steps', '?')}" if first else "none",
        validation=figures["bits_per_dim"],
        **{key: figures[key] for key in costs},
        **bpd,
    )


def likelihoods(record: Record) -> str:
    """Bits per dim by every estimator of a record."""
    figures = record["figures"]
    lines = []
    for name, row in figures["estimators"].items():
        error = row["numerical_error"]
        lines.append(
            f"| {name} | {figures.get('dequantisation', '')} | {row['bits_per_dim']:.4f} ± "
            f"{row['stderr']:.4f} | {row['num_images']} × {row['repeats']} | {row['eps']:.1e} | "
            f"{row['nfe']:.0f} | {'' if error is None else f'{error:.1e}'} |"
        )
    return "\n".join(lines)


def samples(record: Record) -> str:
    """Metrics of what the samplers draw, by a classifier."""
    figures = record["figures"]
    accuracy = f"a classifier of {100 * figures['classifier_accuracy']:.1f} percent accuracy"
    table = samplers_table(figures["table"], figures["floor"])
    return f"## Samples, measured by {accuracy}\n\n{table}{made_by(record)}"


def copies(record: Record) -> str:
    """How near the samples lie to the training images."""
    figures = record["figures"]
    return COPIES.format(percent=100 * figures["copies"], **figures) + made_by(record)


def made_by(record: Record) -> str:
    """The command of a record."""
    return f"\n`{' '.join(record['command'])}`\n"


def foot(run: Record) -> str:
    """How the model was trained."""
    revision, torch = run.get("git_revision"), run["versions"]["torch"]
    return f"Trained by `{' '.join(run['command'])}`; revision {revision}, torch {torch}.\n"


#: record beside the run -> its section
SECTIONS = {"samplers.json": samples, "memorisation.json": copies}

if __name__ == "__main__":
    sys.exit(run_script(main))
