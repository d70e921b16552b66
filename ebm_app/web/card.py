"""Model page: the card of a model, its training curves and a second estimate."""

from functools import lru_cache
from pathlib import Path

import gradio as gr
from matplotlib.figure import Figure

from ebm_app.ebm import EBM
from ebm_app.evaluation.drawings import to_input
from ebm_app.evaluation.held_out import examples
from ebm_app.evaluation.trace import plot_trace, trace
from ebm_app.pretrained import CARD_FILE, PREFIX
from ebm_app.training.metrics import read_metrics, training_figure
from ebm_app.utils import METRICS_FILE

from . import shared
from .models import Models

INTRO = (
    "# How the model was trained and tested\nThe card says how a model learned by "
    f"{shared.PAPER}, and how well it does on held-out images."
)
CURVES = "Training curves. The headline is the bits per dim on the right: lower is better."
#: Min validations of a run whose curves are shown
MIN_POINTS = 3
SECOND = (
    "log p(x) of the first example by another estimator: the log density of noise plus the "
    "integral of the *time score* ∂ log pₜ(x) / ∂t, which the network learns. Left: the time "
    "score. Right: the integral up to t. The Score page shows a bound for any network; the "
    "integral is exact only for exact time scores."
)


def model_card(name: str, *, models: Models) -> tuple[str, Figure | None, Figure | None]:
    """Return a model's card in Markdown, its training curves, and the running integral of the time
    score of its first example, each if available."""
    folder, ebm = models.folder(name), models.open(name).ebm
    # a checkpoint's training records are in the parent folder
    run = folder.parent if folder.name.startswith(PREFIX) else folder
    weights = sum(tensor.numel() for tensor in ebm.state_dict().values())
    (channels, height, width), levels = ebm.config.image_shape, ebm.config.num_levels
    shape = f"{channels} × {height} × {width}"
    text = f"**{shared.as_text(name)}**: {shape}, {levels} levels, {weights:,} weights"
    metrics = read_metrics(run / METRICS_FILE) if is_inside(run, METRICS_FILE) else []
    num_points = sum("validation_bits_per_dim" in row for row in metrics)
    curves = training_figure(metrics) if num_points >= MIN_POINTS else None
    return f"{text}\n\n{read_card(run)}", curves, running_integral(folder, ebm, models.data_root)


@lru_cache(maxsize=16)
def running_integral(folder: Path, ebm: EBM, data_root: str) -> Figure | None:
    """Plot the running integral of the time score of a model's first example, or return None
    without examples or time scores."""
    images = examples(folder, ebm.config, data_root)
    traced = trace(ebm, to_input(images[0], ebm.config)) if images else None
    return traced and plot_trace(traced)


def is_inside(folder: Path, name: str) -> bool:
    """Whether a folder has a file with this name that is not a link to another folder."""
    path = folder / name
    return path.is_file() and path.resolve().is_relative_to(folder.resolve())


def read_card(folder: Path) -> str:
    """Return the card in a folder without its metadata and pictures, or an empty text. HTML is
    shown as text."""
    if not is_inside(folder, CARD_FILE):
        return ""
    text = (folder / CARD_FILE).read_text(encoding="utf-8", errors="replace")
    if text.startswith("---\n"):
        text = text.partition("\n---\n")[2]
    lines = [line for line in text.split("\n") if not line.startswith("![")]
    return "\n".join(lines).replace("<", "&lt;")


def build(app: gr.Blocks, models: Models) -> None:
    """Add the page, which is filled when it is opened."""
    gr.Markdown(INTRO)
    model, loaded = shared.model_selector(app, models)
    curves = shared.plot_box(label=CURVES)
    card = gr.Markdown(elem_classes="card")
    with gr.Accordion("Second estimate: the integral of the time score"):
        gr.Markdown(SECOND)
        integral = shared.plot_box(label="Time score and running integral")
    show = shared.endpoint(model_card, models=models)
    outputs = [card, curves, integral]
    for event in (loaded.then, model.input):
        event(show, model, outputs, api_visibility="private", **shared.QUEUES["score"])
