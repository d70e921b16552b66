"""What a training run logs: ``metrics.jsonl`` always, a tracker of accelerate where asked for, and
the figure of it."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from accelerate import Accelerator

from ebm_app.config import LoopConfig
from ebm_app.utils import METRICS_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import finite_or_none, to_dict
from ebm_app.utils.files import open_file, replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, float | None]
#: seconds of all cores that the steps took so far
SPENT = "core_seconds"


class MetricsLog:
    """Lines {"step": n, name: number, ...} of ``metrics.jsonl``, written by the main process."""

    def __init__(self, accelerator: Accelerator, output_dir: Path, config: LoopConfig) -> None:
        self.accelerator, self.path, self.config = accelerator, output_dir / METRICS_FILE, config

    def start(self, step: int) -> None:
        """Begin at ``step``: lines of later steps, left by a run that was cut off, are dropped."""
        if self.accelerator.is_main_process:
            rows = read_metrics(self.path)
            text = "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= step)
            replace_file(self.path, text.encode())
        if self.config.report_to != "jsonl":
            settings = to_dict(self.config).items()  # TensorBoard takes no lists
            told = {name: " ".join(v) if isinstance(v, list) else v for name, v in settings}
            self.accelerator.init_trackers("ebm_app", config=told)

    def write(self, step: int, **numbers: float) -> None:
        """Add a line."""
        if self.accelerator.is_main_process:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": step, **finite_or_none(numbers)}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        if self.config.report_to != "jsonl":
            self.accelerator.log(numbers, step=step)


def read_metrics(path: Path) -> list[Row]:
    """The lines of a metrics file, none where it is missing; a last line cut short by a crash is
    left out."""
    if not path.exists():
        return []
    with open_file(path) as file:
        *lines, _ = file.read().split(b"\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove the line") from None


def training_figure(lines: list[dict[str, float]]) -> "Figure":
    """Training and validation loss against the step, and validation bits per dim against the core
    seconds that the steps took, where the metrics hold them; what a run has not come to yet is
    left out."""
    # a second to import, and not in every installation
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    found = list(dict.fromkeys(name for line in lines for name in line))
    bits = [name for name in found if name.endswith("bits_per_dim")]
    panels = {"loss": ["loss", "validation_loss"], "validation bits per dim": bits}
    spent = [(line["step"], line[SPENT]) for line in lines if SPENT in line]
    for axes, (label, names) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        is_spent = bool(spent) and names is bits
        for name in (name for name in found if name in names):
            points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
            steps, values = zip(*points, strict=True)
            along = np.interp(steps, *zip(*spent, strict=True)) if is_spent else steps
            axes.plot(along, values, ".-", label=name.replace("_", " "))
        axes.set(xlabel="core seconds" if is_spent else "step", ylabel=label)
        if axes.lines:
            axes.legend()
    return figure
