"""Metrics of a training run: ``metrics.jsonl``, accelerate's trackers, lines on stderr, and a
plot."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from accelerate import Accelerator

from ebm_app.training.checkpoint import State
from ebm_app.training.settings import Run
from ebm_app.utils import METRICS_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import finite_or_none, to_dict
from ebm_app.utils.files import name_in_errors, open_file, replace_file, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, float | None]


class MetricsLog:
    """Writes rows {"step": n, name: number, ...} to ``metrics.jsonl`` and to the trackers of
    ``report_to``, on the main process."""

    def __init__(self, accelerator: Accelerator, output_dir: Path, config: Run) -> None:
        self.accelerator, self.path, self.config = accelerator, output_dir / METRICS_FILE, config

    def start(self, step: int) -> None:
        """Start at ``step``, dropping later rows of an interrupted run."""
        if self.accelerator.is_main_process:
            rows = read_metrics(self.path)
            text = "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= step)
            replace_file(self.path, text.encode())
        if self.config.report_to != "jsonl":
            settings = to_dict(self.config).items()  # trackers accept neither lists nor None
            plain = {key: x if isinstance(x, int | float | str) else str(x) for key, x in settings}
            self.accelerator.init_trackers("ebm_app", config=plain)

    def write(self, step: int, **numbers: float) -> None:
        """Append a row."""
        if self.accelerator.is_main_process:
            with name_in_errors(self.path), self.path.open("a") as file:
                file.write(json.dumps({"step": step, **finite_or_none(numbers)}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        if self.config.report_to != "jsonl":
            self.accelerator.log(numbers, step=step)

    def log(self, state: State, learning_rate: float, images_per_second: float) -> None:
        """Append a row for the steps since the last log. Without a terminal, which shows a
        progress bar, also print a line on stderr."""
        speeds = {"images_per_second": images_per_second, "core_seconds": state.core_seconds}
        self.write(state.step, loss=state.loss, learning_rate=learning_rate, **speeds)
        if self.accelerator.is_main_process and not sys.stderr.isatty():
            words = [f"step {state.step}: loss {state.loss:.4f}"]
            if state.best is not None:
                words.append(f"{state.best['validation_bits_per_dim']:.3f} bits per dim")
            print(*words, f"{images_per_second:.0f} images/s", sep=", ", file=sys.stderr)

    def draw(self, step: int, name: str, image: np.ndarray) -> None:
        """Send an image (H, W, C) uint8 to TensorBoard and Weights & Biases."""
        for tracker in self.accelerator.trackers:
            if tracker.name == "tensorboard":
                tracker.log_images({name: image[None]}, step, dataformats="NHWC")
            elif tracker.name == "wandb":
                tracker.log_images({name: [image]}, step)


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a metrics file, or [] if there is no file. An incomplete last line, as
    after a crash, is ignored."""
    if not path.exists():
        return []
    with open_file(path) as file:
        *lines, _ = file.read().split(b"\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Delete the damaged line.") from None


def training_figure(rows: list[Row]) -> "Figure":
    """Plot the training and validation loss, and the validation bits per dim, against the step."""
    from matplotlib.figure import Figure  # slow to import, and an optional dependency

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    names = list(dict.fromkeys(name for row in rows for name in row))
    bits = [name for name in names if name.endswith("bits_per_dim")]
    panels = {"loss": ["loss", "validation_loss"], "validation bits per dim": bits}
    for axes, (label, shown) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        axes.set(xlabel="step", ylabel=label)
        for name in filter(shown.__contains__, names):
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            axes.plot(*zip(*points, strict=True), ".-", label=name.replace("_", " "))
            axes.legend()
    return figure


def save_training_figure(folder: Path) -> None:
    """Write ``loss.png`` of a run, if matplotlib is installed."""
    if find_spec("matplotlib"):
        figure = training_figure(read_metrics(folder / METRICS_FILE))
        save_figure(figure, folder / "loss.png", dpi=120)
