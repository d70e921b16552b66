"""The tab that shows the card of a model, and tests it."""

from collections.abc import Iterator
from typing import Any

import gradio as gr
from gradio.events import Dependency

from ebm_app.io.errors import UserError

from ..buttons import AT_ONCE, start_and_stop, start_by, stop_by, stopped
from ..explanations import explained
from ..models import Models
from ..shared import hidden_plot, show, slider
from . import card, checks, log_z

SELF_TEST = """### Self-test
Identities that every exact model satisfies, on held-out images of the model's data. With a larger
budget: `python evaluate/selftest.py MODEL`; a record in the folder of the model is shown here."""
Built = tuple[list[gr.Component], Dependency]
LOG_Z = """### log Z, temperature by temperature
It is 0 where the time score is exact. Chains go from noise to the model through intermediate
distributions. With `transported` the probability-flow ODE moves them from one to the next; with
plain `ais` it does not, and they lag behind. More chains and four more methods:
`python evaluate/ais.py MODEL`."""


def build(models: Models, model: gr.Dropdown, line: gr.Markdown, tab: gr.Tab, seed: int) -> None:
    """Put the tab on the page.

    Args:
        model: the page's choice of a model. line: what warns beside it. tab: this one.
        seed: of all noise.
    """
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            facts = gr.Markdown(label="Card")
        with gr.Column(scale=3, min_width=300):
            note = gr.Textbox(label="Training", interactive=False, lines=2)
            curves = hidden_plot("Training curves")
    with gr.Accordion("Description and configuration", open=False):
        readme = gr.Markdown(label="Description", container=True)
        config = gr.JSON(label="Configuration")
    with gr.Row():
        with gr.Column(min_width=300):
            test, testing = build_self_test(models, model, seed)
        with gr.Column(min_width=300):
            chains, moving = build_log_z(models, model, seed)

    @explained
    def fill(name: str) -> tuple[Any, ...]:
        return describe(models, name)

    @explained
    def begin(name: str) -> tuple[Any, ...]:
        warning, (figure, text, rows) = checks.recorded(models.folder(name), name)
        shown = gr.update(value=warning, visible=bool(warning))
        return shown, show(figure), text, rows, show(None), ""

    at_once = {"show_progress": "hidden", **AT_ONCE}
    gr.on(  # a run may continue while its card is read
        [tab.select, model.change], fill, model, [facts, note, curves, readme, config], **at_once
    )
    # a result never stands beside another model than its own, and stays when the tab is left
    model.change(None, cancels=[testing, moving], **AT_ONCE)
    gr.on(None, begin, model, [line, *test, *chains], **at_once)


def describe(models: Models, name: str) -> tuple[Any, ...]:
    """The card of a model as it stands on the page; of one that cannot be read, the reason."""
    try:
        found = card.card(models, name)
    except UserError as error:
        return str(error), "", show(None), "", None
    return found.facts, found.note, show(found.curves), found.readme, found.config


def build_self_test(models: Models, model: gr.Dropdown, seed: int) -> Built:
    """The self-test; its outputs and its run."""
    gr.Markdown(SELF_TEST)
    sizes = checks.MIN_IMAGES, checks.MAX_IMAGES, checks.DEFAULT_IMAGES
    num_images = slider(*sizes, "Held-out images")

    @explained
    def run(name: str, num_images: int) -> Iterator[tuple[Any, ...]]:
        for figure, words, rows in checks.self_test(
            models.load, name, num_images, seed, models.data_root
        ):
            yield show(figure), words, rows

    start, stop = start_and_stop("Run the self-test")
    text = gr.Textbox(label="Result of the self-test", interactive=False, lines=2)
    plot = hidden_plot("Mean time score: 0 in an exact model")
    table = gr.Markdown(label="Checks")
    event = start_by(
        start.click, run, [model, num_images], [plot, text, table], api_visibility="private"
    )
    stop_by(stop, [event], stopped, [text])
    return [plot, text, table], event


def build_log_z(models: Models, model: gr.Dropdown, seed: int) -> Built:
    """log Z by temperature; its outputs and its run."""
    gr.Markdown(LOG_Z)
    method = gr.Dropdown(list(log_z.METHODS), label="Method")
    with gr.Row():
        sizes = 2, log_z.MAX_CHAINS, log_z.DEFAULT_CHAINS
        chains = slider(*sizes, "Chains", min_width=110)
        sizes = 2, log_z.MAX_TEMPERATURES, log_z.DEFAULT_TEMPERATURES
        temperatures = slider(*sizes, "Temperatures", min_width=110)

    @explained
    def run(name: str, method: str, chains: int, temperatures: int) -> Iterator[tuple[Any, ...]]:
        for figure, words in log_z.log_z(models.load, name, method, chains, temperatures, seed):
            yield show(figure), words

    start, stop = start_and_stop("Estimate log Z")
    text = gr.Textbox(label="log Z", interactive=False, lines=2, max_lines=12)
    plot = hidden_plot("Weights and acceptance by temperature")
    inputs = [model, method, chains, temperatures]
    event = start_by(start.click, run, inputs, [plot, text], api_visibility="private")
    stop_by(stop, [event], stopped, [text])
    return [plot, text], event
