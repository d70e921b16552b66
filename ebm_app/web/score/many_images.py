"""Many image files at once: a table of their log-likelihoods."""

from collections.abc import Iterator
from pathlib import Path

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
    "Notes": 400,
}
NATS, PERCENTILE = 1, 4
#: under ``COLUMNS``
FileRow = list[str | float | None]


def score_many(
    model: str,
    files: list[Upload] | None,
    repeats: Repeats,
    invert: bool = False,
    frame: bool = False,
    *,
    models: Models,
    seed: int,
) -> Iterator[tuple[list[FileRow], str]]:
    """Log-likelihoods of many images, prepared as by /score; returns a table in nats and bits
    per dim, and a text. A file that cannot be used has the reason in its row."""
    if not files:
        raise UserError("there are no files: upload some")
    if len(files) > MAX_FILES:
        raise UserError(f"{len(files)} files are more than {MAX_FILES}: upload them in parts")
    ebm = models.load(model)
    rows: list[FileRow] = []
    for path in map(Path, files):
        try:
            prepared = read_upload(path, ebm.config, invert, frame)
        except UserError as error:
            rows.append([path.name, None, None, None, None, str(error)])
        else:
            images = prepared.image.expand(repeats, -1, -1, -1)
            result = ebm.log_prob(images, seed=seed)
            mean = mean_of(result, ebm.default_estimator, images[0].numel())
            rows.append([path.name, *mean.rounded()[:3], None, " ".join(prepared.notes)])
        yield list(rows), f"{progress(len(rows), len(files))} files"
    for found in models.likelihoods(model):
        for row in rows if found.complete else ():
            if row[NATS] is not None:
                row[PERCENTILE] = round(found.percentile(row[NATS]))
        yield list(rows), f"{progress(len(found.log_prob), found.total)} held-out images"
    num = sum(row[NATS] is not None for row in rows)
    yield list(rows), f"{num} of {len(rows)} files have a log-likelihood"


def build(models: Models, model: gr.Dropdown, repeats: gr.Slider, seed: int) -> None:
    """Put the table on the page, with its endpoint /score_many."""
    files = gr.File(label="Image files", file_count="multiple", height=160)
    invert, frame = preparation()
    buttons = start_and_stop("Log-likelihoods of the files")
    text = text_box("Progress")
    table = table_box("Log-likelihoods", COLUMNS, texts=("File", "Notes"))
    shown = [table, text]
    inputs = [model, files, repeats, invert, frame]
    event = start_by(buttons, score_many, inputs, shown, {"models": models, "seed": seed})
    empty_by([part.change for part in (files, invert, frame, model)], [event], shown)
