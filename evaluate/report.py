"""Write report.md of a training run from the records beside it.

python evaluate/report.py runs/digits
python evaluate/report.py runs/digits --output card.md

The folder must hold the record of evaluate/bpd.py. The records of evaluate/ais.py,
evaluate/samplers.py and evaluate/memorisation.py there become part of the report, and so do
records of evaluate/bpd.py in its subfolders, of other images or estimators. Pictures are copied to
the folder of --output.
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ebm_app.evaluation.frechet import samplers_table
from ebm_app.io import METRICS_FILE, RUN_FILE
from ebm_app.io.cli import Parser
from ebm_app.io.errors import UserError
from ebm_app.io.records import read_record
from ebm_app.io.registry import choose
from ebm_app.io.run_schemas import TrainingRun
from ebm_app.io.study_schemas import BitsRecord, CopyRecord, LogZRecord, SamplerRecord
from ebm_app.io.writing import explained_write
from ebm_app.training.metrics import best_validation, read_metrics

HEAD = """# {name}

An energy-based model of {dataset} images ({shape}) in the space {space}, learned by {objective}.

| metric | value |
| --- | --- |
| steps of {batch} images; of the model kept, by least validation loss | {steps}; {kept} |
{before}| images a second in training | {images_per_second:.0f} |
| seconds of training; device at its end | {training_seconds:.0f}; {device} |
| bits per dim in validation, by the default estimator | {validation:.4f} |
| images evaluated, and draws of each | {num_images} of the split `{split}`, {repeats} |
| bits per dim by `{estimator}` | **{bits_per_dim:.4f} ± {stderr:.4f}** |
| margin eps at t = 1 (variance left) | {eps:g} ({final_variance:.1e}) |

Stopping at t = 1 - eps, and a density that is normalised only as far as the time score is exact,
are part of these bits: compare them with others at the same eps.
"""
BPD_FILE = "bpd.json"
PICTURES = {
    "samples/grid.png": "samples",
    "samples_hmc/grid.png": "samples by annealed HMC",
    "memorisation.png": "drawn, and the nearest training images",
    "loss.png": "training",
}
BEFORE = "| trained before, as `{model}`: steps; images; seconds | {seen} |\n"
FOOT = "Trained by `{command}`; revision {git_revision}, torch {torch}.\n"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the report and print its metrics."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("run", help="folder of a training run, with the record of evaluate/bpd.py")
    add("--output", help="the file to write, in place of report.md in that folder")
    args = parser.parse_args(argv)
    folder = Path(args.run)
    run = read_record(TrainingRun, folder / RUN_FILE)
    bpd = read_record(BitsRecord, folder / BPD_FILE)
    if run["figures"] is None:
        raise UserError(f"the run in {folder} has not ended: resume it, or report on another")
    target = Path(args.output) if args.output else folder / "report.md"
    others = sorted(folder.glob(f"*/{BPD_FILE}"))
    records = [bpd, *(read_record(BitsRecord, file) for file in others)]
    parts = [head(folder.name, run, bpd, kept_step(folder)), likelihoods(records)]
    for file, (kind, section) in SECTIONS.items():
        if (folder / file).exists():
            parts.append(section(read_record(kind, folder / file)))
    with explained_write(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        parts += pictures(folder, target.parent)
    command = " ".join(run["command"])
    versions = {"git_revision": run.get("git_revision"), "torch": run["versions"]["torch"]}
    parts.append(FOOT.format(command=command, **versions))
    with explained_write(target.parent):
        target.write_text("\n".join(part for part in parts if part), encoding="utf-8")
    keys = ("bits_per_dim", "stderr", "eps")
    metrics = {key: bpd["figures"][key] for key in keys}
    print(
        f"{folder.name}, held out: {metrics['bits_per_dim']:.4f} +- {metrics['stderr']:.4f} "
        f"bits per dim at eps {metrics['eps']:g}; see {target}"
    )
    return {"report": str(target), **metrics}


def pictures(folder: Path, target: Path) -> list[str]:
    """A line for every picture of a run, copied to the folder of the report if that is another."""
    found = {file: what for file, what in PICTURES.items() if (folder / file).exists()}
    if target.samefile(folder):
        return [f"![{what}]({file})\n" for file, what in found.items()]
    for file in found:
        shutil.copyfile(folder / file, target / flat(file))
    return [f"![{what}]({flat(file)})\n" for file, what in found.items()]


def flat(file: str) -> str:
    """The name of a picture outside its folder."""
    return file.replace("/", "_")


def kept_step(folder: Path) -> int:
    """The step of least validation loss."""
    best = best_validation(read_metrics(folder / METRICS_FILE))
    if best is None:
        raise UserError(f"{folder} lacks the run's {METRICS_FILE}: copy it there")
    return int(best["step"])


def head(name: str, run: dict[str, Any], bpd: dict[str, Any], kept: int) -> str:
    """What was trained, for how long, and the main metrics."""
    ebm, training = run["settings"]["ebm"], run["settings"]["training"]
    return HEAD.format(
        name=name,
        dataset=ebm["dataset"],
        shape=" × ".join(map(str, ebm["image_shape"])),
        space=ebm["space"],
        objective=training["objective"].replace("_", "-").upper(),
        batch=run["figures"]["total_batch_size"],
        steps=run["figures"]["steps"],
        kept=kept,
        before=row_before(run["settings"]),
        images_per_second=run["figures"]["images_per_second"],
        training_seconds=run["figures"]["training_seconds"],
        device=run["figures"]["device"],
        validation=run["figures"]["bits_per_dim"],
        **bpd["figures"],
    )


def row_before(settings: dict[str, Any]) -> str:
    """A row on the training of the weights that a run started from, if it started from any."""
    before = settings.get("init_from")
    if before is None:
        return ""
    known = {"steps", "images", "training_seconds"} <= before.keys()
    seen = "{steps}; {images}; {training_seconds:.0f}" if known else "not recorded"
    return BEFORE.format(model=before["model"], seen=seen.format(**before))


def likelihoods(records: Sequence[dict[str, Any]]) -> str:
    """Bits per dim by every estimator of every record."""
    heads = ("estimator", "dequantisation", "bits per dim", "images × draws", "eps")
    heads += ("evaluations", "own error")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for metrics in (record["figures"] for record in records):
        dequantisation = metrics.get("dequantisation", "")  # records of before do not name it
        for name, row in metrics["estimators"].items():
            error = row["numerical_error"]
            lines.append(
                f"| {name} | {dequantisation} | {row['bits_per_dim']:.4f} ± {row['stderr']:.4f} | "
                f"{row['num_images']} × {row['repeats']} | {row['eps']:.1e} | {row['nfe']:.0f} | "
                f"{'' if error is None else f'{error:.1e}'} |"
            )
    commands = [f"- `{' '.join(record['command'])}`" for record in records]
    return "\n".join(["## Bits per dim by every estimator\n", *lines, "", *commands, ""])


def normalisation(ais: dict[str, Any]) -> str:
    """log Z by every method, with its warnings; bits per dim by it only where there are none."""
    metrics = ais["figures"]
    methods = metrics["methods"]
    lines = [
        f"| {name} | {row['log_z']:.2f} ± {row['stderr']:.2f} | {row['ess']:.1f} of {row['num']} |"
        for name, row in methods.items()
    ]
    notes = [f"- `{name}`: {note}" for name, row in methods.items() for note in row["warnings"]]
    verdict = (
        f"Normalised by `{metrics['method']}`: {metrics['bits_per_dim']:.4f} ± "
        f"{metrics['bits_per_dim_stderr']:.4f} bits per dim."
    )
    choose("method of ais.json", metrics["method"], methods)
    if methods[metrics["method"]]["warnings"]:
        verdict = f"Bits per dim are not normalised: heed the warnings of `{metrics['method']}`."
    return (
        f"## log Z of `{metrics['energy']}`, in nats\n\n"
        "| method | log Z | effective sample size |\n| --- | --- | --- |\n"
        + "\n".join([*lines, "", *notes, "", verdict, "", f"`{' '.join(ais['command'])}`", ""])
    )


def samples(study: dict[str, Any]) -> str:
    """Metrics of what the samplers draw, by a classifier."""
    metrics = study["figures"]
    accuracy = f"a classifier of {100 * metrics['classifier_accuracy']:.1f} percent accuracy"
    table = samplers_table(metrics["table"], metrics["floor"])
    return f"## Samples, measured by {accuracy}\n\n{table}\n`{' '.join(study['command'])}`\n"


def copies(study: dict[str, Any]) -> str:
    """How near the samples lie to the training images."""
    metrics = study["figures"]
    return (
        f"## Copies\n\nMedian distance to the nearest training image, root mean square of the "
        f"pixels: {metrics['median_distance']:.4f} of {metrics['num_images']} drawn images, "
        f"{metrics['median_distance_held_out']:.4f} of {metrics['num_held_out']} held-out ones. "
        f"{100 * metrics['copies']:.1f} percent of the drawn lie nearer than all but "
        f"{100 * metrics['quantile']:g} percent of the held-out; {metrics['identical']} are "
        f"identical.\n\n`{' '.join(study['command'])}`\n"
    )


#: record beside the run -> what it must hold, and its section
SECTIONS: dict[str, tuple[type, Callable[[dict[str, Any]], str]]] = {
    "ais.json": (LogZRecord, normalisation),
    "samplers.json": (SamplerRecord, samples),
    "memorisation.json": (CopyRecord, copies),
}

if __name__ == "__main__":
    sys.exit(run_script(main))
