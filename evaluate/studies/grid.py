"""One grid for every study: a cell is a folder with a record, and a cell that has one is not run
again, so that a study goes on where it was stopped."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from tqdm.auto import tqdm

from ebm_app.io.errors import UserError
from ebm_app.io.records import read_json, write_json

RECORD = "cell.json"
Settings = dict[str, Any]
Figures = dict[str, Any]


def fill(
    folder: Path,
    cells: Mapping[str, Settings],
    run: Callable[[str, Path], Figures],
    accelerator: Accelerator,
) -> dict[str, Figures]:
    """Run the cells that have no record yet, shared among processes.

    Args:
        cells: name -> settings, which JSON can hold; a name is a path below ``folder``.
        run: (name, folder of the cell) -> its figures.

    Returns:
        The figures of all cells by name, in every process.

    Raises:
        UserError: for a cell whose record is of other settings.
    """
    missing = [name for name in cells if figures_of(folder / name, cells[name]) is None]
    accelerator.wait_for_everyone()  # all share the same list
    own = missing[accelerator.process_index :: accelerator.num_processes]
    with tqdm(own, unit="cell", disable=not accelerator.is_main_process) as bar:
        for name in bar:
            bar.set_description(name)
            # a cell that is cut off is not gone on with by other settings
            _write(folder / name, cells[name], None)
            _write(folder / name, cells[name], run(name, folder / name))
    accelerator.wait_for_everyone()
    return {name: figures_of(folder / name, settings) for name, settings in cells.items()}


def _write(folder: Path, settings: Settings, figures: Figures | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, {"settings": settings, "figures": figures})


def figures_of(folder: Path, settings: Settings) -> Figures | None:
    """The figures of a cell; None where it is not finished."""
    if not (folder / RECORD).exists():
        return None
    record = read_json(folder / RECORD)
    if record.get("settings") != json.loads(json.dumps(settings)):
        raise UserError(
            f"{folder} holds a run of other settings: give the same ones or another --output_dir"
        )
    return record["figures"]


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """A table; numbers with four digits, what a row lacks is an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names)]
    for row in rows:
        values = [row.get(name) for name in names]
        texts = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
        lines.append(["" if text == "None" else text for text in texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
