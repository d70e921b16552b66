"""The card of a model, from the files in its folder and in that of its run."""

from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ebm_app.data.images import FOLDER
from ebm_app.io import METRICS_FILE, RUN_FILE
from ebm_app.io.records import as_written, read_json
from ebm_app.io.tensors import read_tensors
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import CONFIG_FILE, WEIGHTS_FILE, read_config
from ebm_app.training.checkpoint import PREFIX
from ebm_app.training.metrics import best_validation, read_metrics
from ebm_app.training.plots import BITS, training_figure

from ..models import Models, without_path
from .readme import shown_readme

README_FILE = "README.md"
NO_CURVES = "No training curves: the folder of this model holds none."
NO_README = "This model comes without a description of its own."


class Card(NamedTuple):
    """What the page shows of a model: a table, its README, its configuration, the curves of its
    training, or None, and a sentence on them."""

    facts: str
    readme: str
    config: dict[str, Any]
    curves: Figure | None
    note: str


def card(models: Models, name: str) -> Card:
    """The card of a model.

    Raises:
        UserError: for an unknown name, or a folder that does not hold a model.
    """
    folder = models.folder(name)
    with without_path(folder, name):
        config = read_config(EBMConfig, folder)
        weights = read_tensors(folder / WEIGHTS_FILE)
        num_weights = sum(tensor.numel() for tensor in weights.values())
        rows = {"model": name, **facts(config, num_weights), **run_facts(run_folder(folder))}
        readme = folder / README_FILE
        text = shown_readme(readme.read_text("utf-8")) if readme.is_file() else NO_README
        lines = read_metrics(run_folder(folder) / METRICS_FILE)
        stored = read_json(folder / CONFIG_FILE) | {"dataset": without_folder(config.dataset)}
    return Card(table(rows), text, stored, training_figure(lines) if lines else None, note(lines))


def run_folder(folder: Path) -> Path:
    """Where the records of a model's training are: beside it, or above a checkpoint."""
    return folder.parent if folder.name.startswith(PREFIX) else folder


def facts(config: EBMConfig, num_weights: int) -> dict[str, str]:
    """What a configuration says, in words."""
    channels, height, width = config.image_shape
    colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return {
        "data": without_folder(config.dataset),
        "images": f"{height} × {width} pixels, {colours}, {config.num_levels} levels",
        "weights": f"{num_weights:,}",
        "path": f"{config.path.name}, in the space {config.space}",
        "margin eps at t = 1": f"{config.eps:g}",
    }


def without_folder(dataset: str) -> str:
    """The name of a data set; of a folder of images its last part, as the server's own folders
    are no visitor's business."""
    is_folder = dataset.startswith(FOLDER)
    return FOLDER + Path(dataset.removeprefix(FOLDER)).name if is_folder else dataset


def run_facts(folder: Path) -> dict[str, str]:
    """The record of a run in words; nothing without a record, less while the run continues."""
    if not (folder / RUN_FILE).is_file():
        return {}
    with as_written(folder / RUN_FILE):
        return facts_of_run(read_json(folder / RUN_FILE))


def facts_of_run(run: dict[str, Any]) -> dict[str, str]:
    """What the record of a run says."""
    found = {"trained": f"{run['started']}, torch {run['versions']['torch']}"}
    if before := run["settings"].get("init_from"):
        steps = f"of {before['steps']:,} steps" if "steps" in before else "of an unrecorded run"
        found["started from"] = f"the weights {steps}"
    metrics = run["figures"]
    if metrics is None:
        return {**found, "steps": "the run continues, or was stopped"}
    return {
        **found,
        "steps": f"{metrics['steps']:,}",
        "validation": f"{metrics['bits_per_dim']:.4f} bits per dim",
    }


def table(rows: dict[str, str]) -> str:
    """Two columns of Markdown."""
    first, *rest = [f"| {key} | {value.replace('|', '/')} |" for key, value in rows.items()]
    return "\n".join([first, "| --- | --- |", *rest])


def note(lines: list[dict[str, float]]) -> str:
    """The best validation of a run, in words."""
    if not lines:
        return NO_CURVES
    text = f"{len(lines)} lines up to step {lines[-1]['step']:,}."
    best = best_validation(lines)
    if best is not None:
        text += (
            f" The model of least validation loss: {best['validation_bits_per_dim']:.4f} ± "
            f"{best['validation_stderr']:.4f} bits per dim at step {best['step']:,}."
        )
        for key in ("validation_elbo", "validation_ratio"):
            if f"{key}_bits_per_dim" in best:
                bits, error = best[f"{key}_bits_per_dim"], best[f"{key}_stderr"]
                text += f" By the {BITS[key]}: {bits:.4f} ± {error:.4f}."
    return text
