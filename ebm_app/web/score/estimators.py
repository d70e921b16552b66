"""Estimators of the same log-likelihood side by side, on the same dequantisation draws."""

import time
from collections.abc import Iterator
from typing import Annotated

import gradio as gr
from annotated_types import Ge, Le

from ebm_app.io.errors import UserError
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.models.config import EBMConfig

from ..models import Models
from ..runs import Upload, empty_by, start_and_stop, start_by
from ..shared import mean_of, slider, table_box, text_box
from .uploads import read_upload

MAX_DRAWS = 16
#: width by heading
COLUMNS = {
    **{"Estimator": 150, "Nats": 100, "± nats": 90, "Bits per dim": 90, "± bits": 90},
    **{"Evaluations": 140, "Seconds": 110},
}
NOTE = (
    "± is the standard error over the draws, the same ones for every row, with what the estimator "
    "itself may be off by. The table may take minutes."
)
EstimatorRow = list[str | float]


def estimators(
    model: str,
    image: Upload | None,
    draws: Annotated[int, Ge(2), Le(MAX_DRAWS)],
    *,
    models: Models,
    seed: int,
) -> Iterator[tuple[list[EstimatorRow], str]]:
    """The log-likelihood of an image by every estimator; returns a table in nats and bits per
    dim with standard errors, network evaluations and seconds, and a text that names the estimators
    that cannot answer for this model, with the reason."""
    if not image:
        raise UserError("there is no image for the estimators: draw or upload one first")
    ebm = models.load(model)
    images = read_upload(image, ebm.config).image.expand(draws, -1, -1, -1)
    rows: list[EstimatorRow] = []
    text = f"{draws} draws"
    for name, options in rows_for(ebm.config).items():
        yield list(rows), f"{text} · running {name}"
        begin = time.perf_counter()
        try:
            result = ebm.log_prob(images, seed=seed, **options)
        except UserError as error:
            text += f" · without {name}: {error}"
            continue
        estimator = options.get("estimator", ebm.default_estimator)
        mean = mean_of(result, estimator, images[0].numel())
        seconds = round(time.perf_counter() - begin, 1)
        rows.append([name, *mean.rounded(), result.nfe, seconds])
    yield rows, f"{len(rows)} estimators · {text}"


def rows_for(config: EBMConfig) -> dict[str, dict[str, str]]:
    """The estimators with the model's own dequantiser, and its default one with every other:
    options of ``EBM.log_prob`` by the name of the row."""
    others = [name for name in DEQUANTISERS if name != config.dequantisation]
    return {name: {"estimator": name} for name in ESTIMATORS} | {
        name: {"dequantiser": name} for name in others
    }


def build(
    models: Models, model: gr.Dropdown, seen: gr.Image, report: gr.Textbox, seed: int
) -> None:
    """Put the comparison on the page, with its endpoint /estimators, of the image whose
    log-likelihood was ``seen`` and told in ``report``."""
    own = [f"- **{name}**: {kind.note}." for name, kind in ESTIMATORS.items()]
    others = ", ".join(DEQUANTISERS)
    own.append(f"- **{others}**: the default, with another dequantisation.")
    gr.Markdown("\n".join([*own, "", NOTE]))
    draws = slider(2, MAX_DRAWS, 4, "Draws of each estimator")
    buttons = start_and_stop("Compare the estimators")
    shown = [table_box("Estimators", COLUMNS, texts=("Estimator",)), text_box("Comparison")]
    given = {"models": models, "seed": seed}
    event = start_by(buttons, estimators, [model, seen, draws], shown, given)
    empty_by([report.change, model.change], [event], shown)
