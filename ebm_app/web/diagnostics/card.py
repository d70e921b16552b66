"""The card of a model, from the files in its folder and in that of its run."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ebm_app.data.images import FOLDER
from ebm_app.io import METRICS_FILE, RUN_FILE
from ebm_app.io.records import as_written, read_json, to_dict
from ebm_app.models.config import EBMConfig
from ebm_app.training.checkpoint import PREFIX
from ebm_app.training.metrics import read_metrics
from ebm_app.training.plots import training_figure

from ..models import Models, without_path

NO_README = "This model comes without a description of its own."
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # settings of a hub of models
# the page serves no file of a folder
PICTURE = re.compile(r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])\n*")


class Card(NamedTuple):
    """What the page shows of a model: a table, the curves of its training, its README, and its
    configuration."""

    facts: str
    curves: Figure | None
    readme: str
    config: dict[str, Any]


def card(models: Models, name: str) -> Card:
    """The card of a model.

    Raises:
        UserError: for an unknown name, or a folder that does not hold a model.
    """
    folder = models.folder(name)
    # the records of a model's training are beside it, or above a checkpoint
    run = folder.parent if folder.name.startswith(PREFIX) else folder
    ebm = models.load(name)
    config, weights = ebm.config, ebm.state_dict()
    with without_path(folder, name):
        lines = read_metrics(run / METRICS_FILE)
        rows = facts(config) | {"weights": f"{sum(part.numel() for part in weights.values()):,}"}
        stored = {"kind": ebm.kind, **to_dict(config)} | {
            "dataset": without_folder(config.dataset)
        }
        readme = folder / "README.md"
        text = shown_readme(readme.read_text("utf-8")) if readme.is_file() else NO_README
        table = [f"| model | {name} |", "| --- | --- |"]
        table += [f"| {key} | {value} |" for key, value in (rows | run_facts(run)).items()]
    curves = training_figure(lines) if lines else None
    return Card("\n".join(table), curves, text, stored)


def facts(config: EBMConfig) -> dict[str, str]:
    """What a configuration says, in words."""
    channels, height, width = config.image_shape
    colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return {
        "data": without_folder(config.dataset),
        "images": f"{height} × {width} pixels, {colours}, {config.num_levels} levels",
        "path": f"{config.path.name}, in the space {config.space}",
        "margin eps at t = 1": f"{config.eps:g}",
    }


def without_folder(dataset: str) -> str:
    """The name of a data set; of a folder of images its last part, as folders are the server's."""
    is_folder = dataset.startswith(FOLDER)
    return FOLDER + Path(dataset.removeprefix(FOLDER)).name if is_folder else dataset


def run_facts(folder: Path) -> dict[str, str]:
    """What the record of a run says; nothing where there is none, less while the run continues."""
    if not (folder / RUN_FILE).is_file():
        return {}
    with as_written(folder / RUN_FILE):
        run = read_json(folder / RUN_FILE)
        found = {"trained": f"{run['started']}, torch {run['versions']['torch']}"}
        if before := run["settings"].get("init_from"):
            steps = f"{before['steps']:,} steps" if "steps" in before else "an unrecorded run"
            found["started from"] = f"the weights of {steps}"
        if (figures := run["figures"]) is None:
            return {**found, "steps": "the run continues, or was stopped"}
        validation = f"{figures['bits_per_dim']:.4f} bits per dim"
        return {**found, "steps": f"{figures['steps']:,}", "validation": validation}


def shown_readme(text: str) -> str:
    """A README that a page may show: without pictures, its HTML as it is written.

    >>> shown_readme("# Digits\\n![a](b.png)<b>bold</b>")
    '# Digits\\n&lt;b>bold&lt;/b>'
    """
    text = FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    return PICTURE.sub("", text).replace("<", "&lt;")
