"""Estimators of the same log-likelihood side by side, on the same dequantisation draws."""

import math
import time
from collections.abc import Iterator

import gradio as gr
from torch import Tensor

from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.models.config import EBMConfig

from ..buttons import empty_by, start_and_stop, start_by, stop_by
from ..explanations import explained
from ..shared import Load, mean_of, slider
from .uploads import preprocess, repeated

MAX_DRAWS, MAX_EXACT_DIMS = 16, 256
HEADERS = ["Estimator", "Nats", "± nats", "Bits per dim", "± bits", "Evaluations", "Seconds"]
#: no word of the headings is broken; where the table is wider than the page, it is moved
WIDTHS = ["150px", "100px", "90px", "90px", "90px", "140px", "110px"]
RUNNING, STOPPED = "running", "stopped before"
TYPES = ["str", *["number"] * (len(HEADERS) - 1)]
TEXT = """\
{estimators}

By the model's default estimator, with another dequantisation than its own:

{dequantisers}

Estimators whose cost grows with the number of pixels are left out for images of more than \
{max_dims} numbers. ± is the standard error over the draws, the same ones for every row, with \
what the estimator itself may be off by; evaluations of the network are those of one draw. The \
table may take minutes."""

EstimatorRow = list[str | float]


def compare(
    load: Load, model: str, path: str | None, draws: int, seed: int = 0
) -> Iterator[tuple[list[EstimatorRow], str]]:
    """The log-likelihood of an image file by every estimator: (the rows so far, a text), before
    each of them and at the end.

    An estimator that cannot answer for this model is named in the text, with the reason.

    Args:
        load: the model of a name. path: the file. draws: of the dequantisation noise.
        seed: of the noise.

    Raises:
        UserError: for no file, or one that cannot be used, and fewer than two draws.
    """
    if not path:
        raise UserError("there is no image for the estimators: draw or upload one first")
    ebm = load(model)
    image = preprocess(path, ebm.config)
    images = repeated(image, draws)
    rows: list[EstimatorRow] = []
    text = f"{draws} draws"
    for name, options in estimators(ebm.config).items():
        yield list(rows), f"{text} · {RUNNING} {name}"
        try:
            rows.append([name, *measure(ebm, images, seed, options)])
        except UserError as error:
            text += f" · without {name}: {error}"
    yield rows, f"{len(rows)} estimators · {text}"


def estimators(config: EBMConfig) -> dict[str, dict[str, str]]:
    """The estimators with the model's own dequantiser, and its default one with every other:
    options of ``EBM.log_prob`` by the name of the row."""
    is_small = math.prod(config.image_shape) <= MAX_EXACT_DIMS
    own = {
        name: {"estimator": name} for name, kind in ESTIMATORS.items() if is_small or not kind.slow
    }
    others = {
        name: {"dequantiser": name} for name in DEQUANTISERS if name != config.dequantisation
    }
    return own | others


def measure(ebm: EBM, images: Tensor, seed: int, options: dict[str, str]) -> list[float]:
    """The numbers of a row of the table for draws (K, C, H, W) of one image."""
    begin = time.perf_counter()
    result = ebm.log_prob(images, seed=seed, **options)
    estimator = options.get("estimator", ebm.default_estimator)
    mean = mean_of(result, estimator, images[0].numel())
    return [*mean.rounded(), result.nfe, round(time.perf_counter() - begin, 1)]


def build(load: Load, model: gr.Dropdown, seen: gr.Image, report: gr.Textbox, seed: int) -> None:
    """Put the comparison on the page, with its endpoint /estimators.

    Args:
        model: the page's choice of a model. seen, report: the image whose log-likelihood was
            found, and what was said of it. seed: of the noise.
    """
    notes = {
        "estimators": "\n".join(
            f"- **{name}**{'' if kind.normalised else ' (not normalised)'}: {kind.note}."
            for name, kind in ESTIMATORS.items()
        ),
        "dequantisers": "\n".join(
            f"- **{name}**: {kind.note}." for name, kind in DEQUANTISERS.items()
        ),
    }
    gr.Markdown(TEXT.format(**notes, max_dims=MAX_EXACT_DIMS))
    draws = slider(2, MAX_DRAWS, 4, "Draws of each estimator")
    start, stop = start_and_stop("Compare the estimators")
    table = gr.Dataframe(
        headers=HEADERS,
        datatype=TYPES,
        interactive=False,
        label="Estimators",
        wrap=True,
        column_widths=WIDTHS,
    )
    text = gr.Textbox(label="Comparison", interactive=False)

    @explained
    def run(model: str, image: str | None, draws: int) -> Iterator[tuple[list[EstimatorRow], str]]:
        """The log-likelihood of an image by every estimator; returns a table in nats and bits per
        dim with standard errors, network evaluations and seconds, and a text."""
        yield from compare(load, model, image, draws, seed)

    event = start_by(start.click, run, [model, seen, draws], [table, text], api_name="estimators")
    stop_by(stop, [event], stopped, [text])
    empty_by([report.change, model.change], [event], [table, text])


def stopped(text: str) -> str:
    """The text of a comparison that was stopped; any other text stays as it is."""
    return text.replace(RUNNING, STOPPED)
