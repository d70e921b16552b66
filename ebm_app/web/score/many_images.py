"""Many image files at once: a table of their log-likelihoods, and the same as CSV."""

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr

from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.models.config import EBMConfig

from ..buttons import RUNNING, empty_by, start_and_stop, start_by, stop_by, stopped
from ..explanations import explained
from ..shared import Load, mean_of
from .held_out import HeldOutImages, HeldOutLikelihoods, percentile
from .prepared import Prepared
from .uploads import preparation, read_upload, repeated

MAX_FILES = 100
HEADERS = ["File", "Nats", "± nats", "Bits per dim", "Percentile", "Problem", "Notes"]
TYPES = ["str", "number", "number", "number", "number", "str", "str"]
#: no word of the headings is broken; where the table is wider than the page, it is moved
WIDTHS = ["150px", "100px", "90px", "90px", "130px", "200px", "300px"]
NATS, PERCENTILE = HEADERS.index("Nats"), HEADERS.index("Percentile")
FORMULA = ("=", "+", "-", "@", "\t", "\r")

FileRow = list[str | float | None]
FileTable = tuple[list[FileRow], str, str]
#: an image file for the model of a configuration
Read = Callable[[Path, EBMConfig], Prepared]


def find_likelihoods(
    load: Load,
    model: str,
    paths: Sequence[str] | None,
    repeats: int,
    held_out: HeldOutImages,
    seed: int = 0,
    read: Read = read_upload,
) -> Iterator[FileTable]:
    """Log-likelihoods of image files: (the rows so far, a CSV file of them, a text), after every
    file.

    A file that cannot be used has the reason in its row. Percentiles come last; the CSV file is
    there until the next step.

    Args:
        load: the model of a name. paths: the files. repeats: draws of the dequantisation noise.
        held_out: what the log-likelihoods are compared with. seed: of the noise.
        read: a file for the model.

    Raises:
        UserError: for no files or too many, and fewer than two repeats.
    """
    if not paths:
        raise UserError("there are no files: upload some")
    if len(paths) > MAX_FILES:
        raise UserError(f"{len(paths)} files are more than {MAX_FILES}: upload them in parts")
    ebm = load(model)
    rows: list[FileRow] = []
    with TemporaryDirectory() as folder:  # the page keeps a copy of what is yielded
        target = Path(folder) / "scores.csv"
        for path in paths:
            rows.append(file_row(ebm, Path(path), read, repeats, seed))
            text = f"{RUNNING} {len(rows)} of {len(paths)} files"
            yield list(rows), write_csv(rows, target), text
        for found in held_out.likelihoods(ebm, model):
            if found.complete:
                rows = [with_percentile(row, found) for row in rows]
            text = f"{RUNNING} {len(found.log_prob)} of {found.total} held-out images"
            yield list(rows), write_csv(rows, target), text
        yield list(rows), write_csv(rows, target), summary(rows)


def file_row(ebm: EBM, path: Path, read: Read, repeats: int, seed: int) -> FileRow:
    """The row of one file, without its percentile."""
    try:
        prepared = read(path, ebm.config)
    except UserError as error:
        return [path.name, None, None, None, None, str(error), ""]
    result = ebm.log_prob(repeated(prepared.image, repeats), seed=seed)
    mean = mean_of(result, ebm.default_estimator, prepared.image.numel())
    nats, error, bits, _ = mean.rounded()
    return [path.name, nats, error, bits, None, "", " ".join(prepared.lines())]


def with_percentile(row: FileRow, found: HeldOutLikelihoods) -> FileRow:
    """A row with its place among the held-out images; one of a file that cannot be used as it
    is."""
    if row[NATS] is None:
        return row
    return [*row[:PERCENTILE], round(percentile(row[NATS], found)), *row[PERCENTILE + 1 :]]


def summary(rows: list[FileRow]) -> str:
    """What came of all files, in words."""
    found = sum(row[NATS] is not None for row in rows)
    compared = any(row[PERCENTILE] is not None for row in rows)
    parts = [f"{found} of {len(rows)} files have a log-likelihood"]
    if found and not compared:
        parts.append("no percentiles, as held-out images of the model's data are not there")
    return " · ".join(parts)


def write_csv(rows: list[FileRow], target: Path) -> str:
    """Write the table with its heads, UTF-8; the file as text."""
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADERS)
        writer.writerows([_plain(cell) for cell in row] for row in rows)
    return str(target)


def _plain(cell: str | float | None) -> str | float | None:
    """A text that a spreadsheet would run as a formula begins with a quote instead."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def build(
    load: Load, model: gr.Dropdown, repeats: gr.Slider, held_out: HeldOutImages, seed: int
) -> None:
    """Put the table on the page, with its endpoint /score_many.

    Args:
        model, repeats: the page's choices. held_out: what the log-likelihoods are compared with.
        seed: of the noise.
    """
    files = gr.File(label="Image files", file_count="multiple", height=160)
    invert, frame = preparation()
    start, stop = start_and_stop("Log-likelihoods of the files")
    text = gr.Textbox(label="Progress", interactive=False)
    table = gr.Dataframe(
        headers=HEADERS,
        datatype=TYPES,
        interactive=False,
        label="Log-likelihoods",
        wrap=True,
        column_widths=WIDTHS,
    )
    sheet = gr.File(label="The table as CSV", interactive=False, height=80)

    @explained
    def run(
        model: str,
        files: list[str] | None,
        repeats: int,
        invert: bool = False,
        frame: bool = False,
    ) -> Iterator[FileTable]:
        """Log-likelihoods of many images, prepared as by /score; returns a table in nats and bits
        per dim, the table as a CSV file, and a text."""
        read = partial(read_upload, invert=invert, frame=frame)
        yield from find_likelihoods(load, model, files, repeats, held_out, seed, read)

    shown = [table, sheet, text]
    inputs = [model, files, repeats, invert, frame]
    event = start_by(start.click, run, inputs, shown, api_name="score_many")
    stop_by(stop, [event], stopped, [text])
    changes = [files.change, invert.change, frame.change, model.change]
    empty_by(changes, [event], shown)
