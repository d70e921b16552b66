"""Many image files at once: a table of how ordinary they are, the oddest first."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr
import pandas as pd

from ebm_app.anomaly.detector import benjamini_hochberg
from ebm_app.utils.errors import UserError

from ..models import Models
from ..runs import AT_ONCE, Upload, empty_by, start_and_stop, start_by
from ..shared import in_a_row, mean_of, progress, table_box, text_box
from .one_image import Repeats
from .uploads import preparation, read_upload

MAX_FILES = 100
#: expected share of ordinary images among those that are called odd
RATE = 0.05
#: width by heading
COLUMNS = {
    **{"File": 150, "p-value": 90, "Nats": 100, "± nats": 90, "Bits per dim": 90},
    **{"Notes": 300, "Odd": 70},
}
P_VALUE, NATS, ODD = 1, 2, 6
CSV_FILE = "scores.csv"
#: under ``COLUMNS``
FileRow = list[str | float | None]


def score_many(
    model: str,
    files: list[Upload] | None,
    repeats: Repeats,
    as_it_is: bool = False,
    *,
    models: Models,
    seed: int,
) -> Iterator[tuple[list[FileRow], str]]:
    """Whether many images are ordinary, prepared as by /score; returns a table, the oddest first,
    and a text. A file that cannot be used has the reason in its row."""
    if not files:
        raise UserError("there are no files: upload some")
    if len(files) > MAX_FILES:
        raise UserError(f"{len(files)} files are more than {MAX_FILES}: upload them in parts")
    ebm, detector = models.load(model), models.detector(model)
    rows: list[FileRow] = []
    for path in map(Path, files):
        try:
            prepared = read_upload(path, ebm.config, as_it_is)
        except UserError as error:
            rows.append([path.name, *[None] * 4, str(error), None])
        else:
            images = prepared.image.expand(repeats, -1, -1, -1)
            result = ebm.likelihood(images, seed=seed)
            mean = mean_of(result, ebm.default_estimator, images[0].numel())
            p = detector and round(detector.examine(images[:1]).p_value.item(), 4)
            rows.append([path.name, p, *in_a_row(mean), " ".join(prepared.notes), None])
        yield list(rows), f"{progress(len(rows), len(files))} files"
    rows.sort(key=lambda row: (row[NATS] is None, row[P_VALUE] or 0, row[NATS]))
    yield list(rows), flag(rows, RATE)


def flag(rows: list[FileRow], rate: float) -> str:
    """Mark the rows that are odd at a rate; what to say of all of them."""
    read = [row for row in rows if row[NATS] is not None]
    text = f"{len(read)} of {len(rows)} files have a log-likelihood"
    if any(row[P_VALUE] is None for row in read):  # no detector
        return text
    odd = benjamini_hochberg([row[P_VALUE] for row in read], rate)
    for row, is_odd in zip(read, odd, strict=True):
        row[ODD] = "yes" if is_odd else "no"
    return f"{text}, {odd.sum()} are odd, of which about {rate:.0%} by chance"


def build(models: Models, model: gr.Dropdown, repeats: gr.Slider, seed: int) -> None:
    """Put the table on the page, with its endpoint /score_many."""
    files = gr.File(label="Image files", file_count="multiple", height=160)
    as_it_is = preparation()
    info = "at most so many of those called odd are ordinary, on average"
    rate = gr.Slider(0.01, 0.5, RATE, step=0.01, label="Share of false alarms", info=info)
    buttons = start_and_stop("Are the files ordinary?")
    text = text_box("Progress")
    table = table_box("The oddest first", COLUMNS, ("File", "Notes", "Odd"))
    whole = gr.File(label="The table (CSV)", interactive=False, height=80)
    inputs = [model, files, repeats, as_it_is]
    event = start_by(buttons, score_many, inputs, [table, text], {"models": models, "seed": seed})

    def keep(rows: list[FileRow], rate: float) -> Iterator[tuple[list[FileRow], str, str]]:
        told = flag(rows, rate)
        with TemporaryDirectory() as folder:  # the page keeps a copy
            path = Path(folder) / CSV_FILE
            pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(path, index=False)
            yield rows, told, str(path)

    shown = [table, text, whole]
    for when in (event.success, rate.release):
        when(keep, [table, rate], shown, **AT_ONCE)
    empty_by([part.change for part in (files, as_it_is, model)], [event], shown)
