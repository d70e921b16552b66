"""Estimators of the same log-likelihood side by side, on the same dequantisation draws."""

import time
from collections.abc import Iterator

import gradio as gr
from torch import Tensor

from ebm_app.data.levels import to_levels
from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.evaluation.command_line import Row
from ebm_app.likelihood import ESTIMATORS, RatioIntegral
from ebm_app.likelihood.bits import log_likelihood
from ebm_app.likelihood.dequantisation import TruncatedNormal, dequantisation_noise

from ..buttons import IN_TURN, empty_by, start_and_stop, start_by, stop_by
from ..explanations import explained
from ..shared import Load, mean_over_draws
from .uploads import preprocess, repeated

MAX_DRAWS, MAX_EXACT_DIMS = 16, 256
HEADERS = ["Estimator", "Nats", "± nats", "Bits per dim", "± bits", "Evaluations", "Seconds"]
RUNNING, STOPPED = "running", "stopped before"
TYPES = ["str", *["number"] * (len(HEADERS) - 1)]
NOTES = f"""\
- **ratio**, **ode**: the integral of the time score over time, by fixed nodes and by an adaptive \
solver; normalised as far as the time score is exact.
- **pf_ode**: the density of the model's own flow, normalised, its divergence estimated with \
random probes.
- **pf_ode_exact**: the density of a flow in discrete steps, without that noise; a backward pass \
for each pixel and step, so for images of at most {MAX_EXACT_DIMS} numbers.
- **elbo**: a lower bound by the model's own diffusion, which is normalised; by noisy copies of \
the image, whose noise shows in ±.
- **truncated_normal**: the ratio under another dequantisation; loose by about half a bit per dim \
for a model that was not trained with it.

± is the standard error over the draws, the same ones for every row; evaluations of the network \
are those of one draw. The table may take minutes."""

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
    levels = to_levels(repeated(image, draws), ebm.config.num_levels).to(ebm.device)
    noise = dequantisation_noise(1, levels, seed).to(ebm.device)
    rows: list[EstimatorRow] = []
    text = f"{draws} draws"
    for name, row in estimators(image.numel()).items():
        yield list(rows), f"{text} · {RUNNING} {name}"
        try:
            rows.append([name, *measure(ebm, levels, noise, row)])
        except UserError as error:
            text += f" · without {name}: {error}"
    yield rows, f"{len(rows)} estimators · {text}"


def estimators(num_dims: int) -> dict[str, Row]:
    """The ways to find the log-likelihood of an image of so many numbers, by name."""
    rows = {name: Row(kind()) for name, kind in ESTIMATORS.items()}
    if num_dims > MAX_EXACT_DIMS:
        del rows["pf_ode_exact"]
    return {**rows, "truncated_normal": Row(RatioIntegral(), TruncatedNormal())}


def measure(ebm: EBM, levels: Tensor, noise: Tensor, row: Row) -> list[float]:
    """The numbers of a row of the table for draws (K, C, H, W) of one image."""
    begin = time.perf_counter()
    result = log_likelihood(
        ebm.energy,
        ebm.space,
        levels,
        ebm.config.num_levels,
        noise,
        row.dequantiser or ebm.dequantiser,
        row.estimator,
    )
    mean = mean_over_draws(result.log_prob, levels[0].numel())
    return [*mean.rounded(), result.nfe, round(time.perf_counter() - begin, 1)]


def build(load: Load, model: gr.Dropdown, seen: gr.Image, report: gr.Textbox, seed: int) -> None:
    """Put the comparison on the page, with its endpoint /estimators.

    Args:
        model: the page's choice of a model. seen, report: the image whose log-likelihood was
            found, and what was said of it. seed: of the noise.
    """
    gr.Markdown(NOTES)
    draws = gr.Slider(2, MAX_DRAWS, value=4, step=1, label="Draws of each estimator")
    start, stop = start_and_stop("Compare the estimators")
    table = gr.Dataframe(
        headers=HEADERS, datatype=TYPES, interactive=False, label="Estimators", wrap=True
    )
    text = gr.Textbox(label="Comparison", interactive=False)

    @explained
    def run(model: str, image: str | None, draws: int) -> Iterator[tuple[list[EstimatorRow], str]]:
        """The log-likelihood of an image by every estimator; returns a table in nats and bits per
        dim with standard errors, network evaluations and seconds, and a text."""
        yield from compare(load, model, image, draws, seed)

    event = start_by(
        start.click, run, [model, seen, draws], [table, text], api_name="estimators", **IN_TURN
    )
    stop_by(stop, [event], stopped, [text])
    empty_by([report.change, model.change], [event], [table, text])


def stopped(text: str) -> str:
    """The text of a comparison that was stopped; any other text stays as it is."""
    return text.replace(RUNNING, STOPPED)
