"""Many image files at once: a table of their scores, and the same as CSV."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr

from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.numerics import standard_error

from ..ending import IN_TURN, empty_by, stop_by
from ..shared import ONE_AT_A_TIME, Load, explained
from .held_out import HeldOut, HeldOutScores, percentile
from .uploads import preprocess, repeated

MAX_FILES = 100
HEADERS = ["File", "Nats", "± nats", "Bits per dim", "Percentile", "Problem"]
TYPES = ["str", "number", "number", "number", "number", "str"]
NATS, PERCENTILE = HEADERS.index("Nats"), HEADERS.index("Percentile")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
RUNNING, STOPPED = "Scoring", "Stopped while scoring"

Cells = list[str | float | None]
Table = tuple[list[Cells], str, str]


def score_many(
    load: Load,
    model: str,
    paths: Sequence[str] | None,
    repeats: int,
    held_out: HeldOut,
    seed: int = 0,
) -> Iterator[Table]:
    """Score image files: (the rows so far, a CSV file of them, a text), after every file.

    A file that cannot be scored has the reason in its row. Percentiles come last; the CSV file is
    there until the next step.

    Args:
        load: the model of a name. paths: the files. repeats: draws of the dequantisation noise.
        held_out: what the scores are compared with. seed: of the noise.

    Raises:
        UserError: for no files or too many, and fewer than two repeats.
    """
    if not paths:
        raise UserError("there are no files to score: upload some")
    if len(paths) > MAX_FILES:
        raise UserError(
            f"{len(paths)} files are more than {MAX_FILES}: score them in several parts"
        )
    ebm = load(model)
    rows: list[Cells] = []
    with TemporaryDirectory() as folder:  # the page keeps a copy of what is yielded
        target = Path(folder) / "scores.csv"
        for path in paths:
            rows.append(score_file(ebm, Path(path), repeats, seed))
            yield (
                list(rows),
                write_csv(rows, target),
                f"{RUNNING} · {len(rows)} of {len(paths)} files",
            )
        for scores in _compared(ebm, held_out):
            text = f"{RUNNING} · {len(scores.log_prob)} of {scores.total} held-out images"
            if scores.complete:
                rows = [with_percentile(row, scores) for row in rows]
            yield list(rows), write_csv(rows, target), text
        yield list(rows), write_csv(rows, target), summary(rows)


def score_file(ebm: EBM, path: Path, repeats: int, seed: int) -> Cells:
    """The row of one file, without its percentile."""
    try:
        image = preprocess(path, ebm.config)
    except UserError as error:
        return [path.name, None, None, None, None, str(error)]
    result = ebm.log_prob(repeated(image, repeats), seed=seed)
    return [
        path.name,
        round(result.log_prob.mean().item(), 2),
        round(standard_error(result.log_prob).item(), 2),
        round(result.bits_per_dim.mean().item(), 4),
        None,
        "",
    ]


def _compared(ebm: EBM, held_out: HeldOut) -> Iterator[HeldOutScores]:
    images = held_out.images(ebm.config)
    if images is not None:
        yield from held_out.scores(ebm, images)


def with_percentile(row: Cells, scores: HeldOutScores) -> Cells:
    """A row with its place among the held-out images; one without a score as it is."""
    if row[NATS] is None:
        return row
    return [*row[:PERCENTILE], round(percentile(row[NATS], scores)), *row[PERCENTILE + 1 :]]


def summary(rows: list[Cells]) -> str:
    """What came of all files, in words."""
    scored = sum(row[NATS] is not None for row in rows)
    compared = any(row[PERCENTILE] is not None for row in rows)
    parts = [f"{scored} of {len(rows)} files scored"]
    if scored and not compared:
        parts.append("no percentiles, as held-out images of the model's data are not there")
    return " · ".join(parts)


def stopped(text: str) -> str:
    """The text of a run that was stopped; any other text stays as it is."""
    return text.replace(RUNNING, STOPPED)


def write_csv(rows: list[Cells], target: Path) -> str:
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
    load: Load, model: gr.Dropdown, repeats: gr.Slider, held_out: HeldOut, seed: int
) -> None:
    """Put the table on the page, with its endpoint /score_many.

    Args:
        model, repeats: the page's choices. held_out: what the scores are compared with.
        seed: of the noise.
    """
    files = gr.File(label="Image files", file_count="multiple", height=160)
    with gr.Row():
        start = gr.Button("Score the files", variant="primary")
        stop = gr.Button("Stop")
    text = gr.Textbox(label="Progress", interactive=False)
    table = gr.Dataframe(
        headers=HEADERS, datatype=TYPES, interactive=False, label="Scores", wrap=True
    )
    sheet = gr.File(label="The table as CSV", interactive=False, height=80)

    @explained
    def run(model: str, files: list[str] | None, repeats: int) -> Iterator[Table]:
        """Score many images; returns a table in nats and bits per dim, the table as a CSV file,
        and a text."""
        yield from score_many(load, model, files, repeats, held_out, seed)

    event = start.click(
        run,
        [model, files, repeats],
        [table, sheet, text],
        api_name="score_many",
        **IN_TURN,
        **ONE_AT_A_TIME,
    )
    stop_by(stop, [event], stopped, [text])
    empty_by([files.change, model.change], [event], [table, sheet, text])
