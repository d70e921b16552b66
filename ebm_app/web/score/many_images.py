"""Many image files at once: a table of their log-likelihoods, and the same as CSV."""

import csv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr

from ebm_app.io.errors import UserError

from ..models import Models
from ..runs import Upload, empty_by, start_and_stop, start_by
from ..shared import mean_of, progress, table_box, text_box
from .one_image import Repeats
from .uploads import preparation, read_upload

MAX_FILES = 100
#: width by heading
COLUMNS = {
    **{"File": 150, "Nats": 100, "± nats": 90, "Bits per dim": 90, "Percentile": 130},
    **{"Problem": 200, "Notes": 300},
}
NATS, PERCENTILE = 1, 4
#: beginnings of a text that a spreadsheet would run
FORMULA = ("=", "+", "-", "@", "\t", "\r")
FileRow = list[str | float | None]
FileTable = tuple[list[FileRow], str, str]


def score_many(
    model: str,
    files: list[Upload] | None,
    repeats: Repeats,
    invert: bool = False,
    frame: bool = False,
    *,
    models: Models,
    seed: int,
) -> Iterator[FileTable]:
    """Log-likelihoods of many images, prepared as by /score; returns a table in nats and bits
    per dim, the table as a CSV file, and a text. A file that cannot be used has the reason in its
    row."""
    if not files:
        raise UserError("there are no files: upload some")
    if len(files) > MAX_FILES:
        raise UserError(f"{len(files)} files are more than {MAX_FILES}: upload them in parts")
    ebm = models.load(model)
    rows: list[FileRow] = []
    with TemporaryDirectory() as folder:  # the page keeps a copy of what is yielded
        target = Path(folder) / "scores.csv"
        for path in map(Path, files):
            try:
                prepared = read_upload(path, ebm.config, invert, frame)
            except UserError as error:
                rows.append([path.name, None, None, None, None, str(error), ""])
            else:
                images = prepared.image.expand(repeats, -1, -1, -1)
                result = ebm.log_prob(images, seed=seed)
                mean = mean_of(result, ebm.default_estimator, images[0].numel())
                rows.append([path.name, *mean.rounded()[:3], None, "", " ".join(prepared.notes)])
            yield list(rows), write_csv(rows, target), f"{progress(len(rows), len(files))} files"
        for found in models.likelihoods(model):
            for row in rows if found.complete else ():
                if row[NATS] is not None:
                    row[PERCENTILE] = round(found.percentile(row[NATS]))
            text = f"{progress(len(found.log_prob), found.total)} held-out images"
            yield list(rows), write_csv(rows, target), text
        text = f"{sum(row[NATS] is not None for row in rows)} of {len(rows)} files have a "
        yield list(rows), write_csv(rows, target), f"{text}log-likelihood"


def write_csv(rows: list[FileRow], target: Path) -> str:
    """Write the table with its heads, UTF-8; the file as text. A text that a spreadsheet would run
    as a formula begins with a quote instead."""
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            risky = [isinstance(cell, str) and cell.startswith(FORMULA) for cell in row]
            cells = zip(row, risky, strict=True)
            writer.writerow([f"'{cell}" if is_risky else cell for cell, is_risky in cells])
    return str(target)


def build(models: Models, model: gr.Dropdown, repeats: gr.Slider, seed: int) -> None:
    """Put the table on the page, with its endpoint /score_many."""
    files = gr.File(label="Image files", file_count="multiple", height=160)
    invert, frame = preparation()
    buttons = start_and_stop("Log-likelihoods of the files")
    text = text_box("Progress")
    table = table_box("Log-likelihoods", COLUMNS, texts=("File", "Problem", "Notes"))
    shown = [table, gr.File(label="The table as CSV", interactive=False, height=80), text]
    inputs = [model, files, repeats, invert, frame]
    event = start_by(buttons, score_many, inputs, shown, {"models": models, "seed": seed})
    empty_by([part.change for part in (files, invert, frame, model)], [event], shown)
