"""What a training run logs: ``metrics.jsonl`` always, TensorBoard where asked for."""

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

from accelerate import Accelerator

from ebm_app.errors import UserError
from ebm_app.files import METRICS_FILE
from ebm_app.files.records import to_dict
from ebm_app.models.config import TrainingConfig
from ebm_app.registry import choose

#: what ``--report_to`` takes
REPORTS = {"jsonl": "metrics.jsonl alone", "tensorboard": "its files as well"}


def check_report_to(report_to: str) -> None:
    """Raise a UserError for an unknown tracker, or one that is not installed."""
    choose("report_to", report_to, REPORTS)
    if report_to == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise UserError("--report_to tensorboard needs it installed: pip install tensorboard")


class MetricsLog:
    """Lines {"step": n, name: number, ...} of ``metrics.jsonl``, written by the main process."""

    def __init__(self, accelerator: Accelerator, output_dir: Path, config: TrainingConfig) -> None:
        self.accelerator, self.path, self.config = accelerator, output_dir / METRICS_FILE, config

    def start(self, step: int) -> None:
        """Begin at ``step``: lines of later steps, left by a run that was cut off, are dropped."""
        if self.accelerator.is_main_process:
            lines = [line for line in read_metrics(self.path) if line["step"] <= step]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            self.path.write_text(text, encoding="utf-8")
        if self.config.report_to == "tensorboard":
            self.accelerator.init_trackers("tensorboard", config=to_dict(self.config))

    def write(self, step: int, **numbers: float) -> None:
        """Add a line."""
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **numbers}) + "\n")
        if self.config.report_to == "tensorboard":
            self.accelerator.log(numbers, step=step)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The whole lines of a metrics file; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def best_validation(lines: Iterable[dict[str, float]]) -> dict[str, float] | None:
    """The line of the model that a run keeps, of least validation loss; None before the first."""
    validations = [line for line in lines if "validation_loss" in line]
    return min(validations, key=lambda line: line["validation_loss"], default=None)
