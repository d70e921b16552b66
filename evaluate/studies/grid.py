"""Cells of a study: a folder with a record each, so that a study goes on where it was stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebm_app.utils.errors import UserError
from ebm_app.utils.files import read_json, write_json

RECORD = "cell.json"
Settings = dict[str, Any]
Figures = dict[str, Any]


def once(folder: Path, settings: Settings, run: Callable[[], Figures]) -> Figures:
    """The figures of a cell, which is run unless its record holds them.

    Args:
        settings: what the figures depend on, which JSON can hold.

    Raises:
        UserError: where the record is of other settings.
    """
    record = read_json(folder / RECORD) if (folder / RECORD).exists() else None
    if record is not None and record.get("settings") != json.loads(json.dumps(settings)):
        raise UserError(
            f"{folder} holds a run of other settings: give the same ones or another --output_dir"
        )
    if record is not None and record["figures"] is not None:
        return record["figures"]
    folder.mkdir(parents=True, exist_ok=True)
    # a cell that is cut off is not gone on with by other settings
    write_json(folder / RECORD, {"settings": settings, "figures": None})
    figures = run()
    write_json(folder / RECORD, {"settings": settings, "figures": figures})
    return read_json(folder / RECORD)["figures"]
