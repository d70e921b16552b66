"""What a training run logs: ``metrics.jsonl`` always, a tracker of accelerate where asked for."""

import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from accelerate import Accelerator
from accelerate.tracking import LoggerType, get_available_trackers

from ebm_app.io import METRICS_FILE
from ebm_app.io.errors import UserError
from ebm_app.io.records import open_plain, to_dict
from ebm_app.io.registry import choose
from ebm_app.io.writing import replace_file
from ebm_app.models.config import LoopConfig

Row = dict[str, float | None]


def check_report_to(report_to: str) -> None:
    """Raise a UserError for a tracker that accelerate does not know, or that is not installed."""
    trackers = [tracker.value for tracker in LoggerType]
    choose("tracker", report_to, ["jsonl", *trackers])
    if report_to not in ("jsonl", "all", *map(str, get_available_trackers())):
        raise UserError(f"--report_to {report_to} needs it installed: pip install {report_to}")


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
            self.accelerator.init_trackers("ebm_app", config=to_dict(self.config))

    def write(self, step: int, **numbers: float) -> None:
        """Add a line."""
        if self.accelerator.is_main_process:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": step, **finite(numbers)}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        if self.config.report_to != "jsonl":
            self.accelerator.log(numbers, step=step)


def finite(numbers: Mapping[str, float]) -> Row:
    """Numbers for JSON, whose only word for one that is not finite is null."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}


def read_metrics(path: Path) -> list[Row]:
    """The lines of a metrics file, none where it is missing; a last line cut short by a crash is
    left out.

    Raises:
        UserError: for another line that is no JSON.
    """
    if not path.exists():
        return []
    with open_plain(path) as file:
        *lines, _ = file.read().split(b"\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove the line") from None
